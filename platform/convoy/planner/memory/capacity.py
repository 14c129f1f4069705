"""Whether a configuration has room where it runs, and on how many machines it has."""

import bisect
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from convoy.planner.memory.gpu import Memory, memory
from convoy.planner.memory.host import HostMemory, host_memory
from convoy.planner.workload import Workload

MOST_NODES = 4096
"""Looked at."""


class Room(NamedTuple):
    """What it takes of a rank's memory, and of a machine's own; None: how much the machine has is not known."""

    memory: Memory
    host: HostMemory | None

    @property
    def enough(self) -> bool:
        """That it fits can be counted on."""
        return self.memory.reliable and (self.host is None or self.host.fits)


def room(job: Workload, *, fused: bool) -> Room:
    """fused: `optimizer.fused`."""
    return room_of(job, memory(job, fused=fused))


def room_of(job: Workload, needed: Memory) -> Room:
    """The same of a job whose memory is known."""
    return Room(needed, host_memory(job, needed.peak_bytes) if job.machine.host_bytes else None)


def least_nodes(job: Workload, *, fused: bool) -> int | None:
    """The fewest machines, more than it has, on which the same configuration has room; None: more of them do not help.

    Of as many sequences a pass more machines take no more memory of each, so that each such search halves.
    """
    most = min(MOST_NODES, job.train.global_batch * job.parallel.shared_by // job.machine.ranks)
    jobs = [each for nodes in range(job.nodes + 1, most + 1) if (each := _on(job, nodes)) is not None]
    alike: dict[int, list[Workload]] = {}
    for each in jobs:
        alike.setdefault(each.sequences_per_pass, []).append(each)
    found = (_first(group, fused) for group in alike.values())
    return min((nodes for nodes in found if nodes is not None), default=None)


def _first(jobs: Sequence[Workload], fused: bool) -> int | None:
    place = bisect.bisect_left(jobs, True, key=lambda each: room(each, fused=fused).enough)
    return jobs[place].nodes if place < len(jobs) else None


def _on(job: Workload, nodes: int) -> Workload | None:
    """None: the ranks of so many machines cannot be divided as configured."""
    try:
        return replace(job, nodes=nodes)
    except ValueError:
        return None
