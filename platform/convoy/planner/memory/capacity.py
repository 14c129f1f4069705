"""Whether a configuration has room where it runs, what it lacks, and on how many machines it has room."""

import bisect
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from convoy.display.formatting import gib
from convoy.planner.memory.gpu import Memory, memory
from convoy.planner.memory.host import HostMemory, host_memory
from convoy.planner.workload import Workload

MOST_NODES = 4096


class Room(NamedTuple):
    """Memory of a rank, and a machine's own; None: the machine's memory is not known."""

    memory: Memory
    host: HostMemory | None

    @property
    def enough(self) -> bool:
        """That it fits can be counted on."""
        return not shortage(self.memory, self.host)


def room(job: Workload, *, fused: bool) -> Room:
    """fused: `optimizer.fused`."""
    return room_of(job, memory(job, fused=fused))


def room_of(job: Workload, needed: Memory) -> Room:
    return Room(needed, host_memory(job, needed.peak_bytes) if job.machine.host_bytes else None)


def shortage(needed: Memory | None, host: HostMemory | None) -> str:
    """What is lacking, or why nobody can count on it; empty: neither, as far as memory is known."""
    lacking = []
    if needed is not None and not needed.fits:
        lacking.append(f"{gib(-needed.margin_bytes)} more than a rank has")
    if host is not None and not host.fits:
        lacking.append(f"{gib(host.total_bytes - host.capacity_bytes)} more of its own memory than a machine has")
    if not lacking and needed is not None and not needed.reliable:
        return f"takes {needed.share:.0%} of what a rank has: above 90 % nobody can tell whether it fits"
    return ", and ".join(lacking)


def least_nodes(job: Workload, *, fused: bool) -> int | None:
    """The fewest machines, more than it has, on which the same configuration has room; None: more of them do not help.

    Among those with equally many sequences a pass, more machines need no more memory of each, so a bisection finds it.
    """
    most = min(MOST_NODES, job.train.global_batch * job.parallel.shared_by // job.machine.ranks)
    alike: dict[int, list[Workload]] = {}
    for nodes in range(job.nodes + 1, most + 1):
        try:
            larger = replace(job, nodes=nodes)
        except ValueError:
            continue  # so many ranks cannot be divided as configured
        alike.setdefault(larger.sequences_per_pass, []).append(larger)
    smallest = (_first_with_room(jobs, fused) for jobs in alike.values())
    return min((nodes for nodes in smallest if nodes is not None), default=None)


def _first_with_room(jobs: Sequence[Workload], fused: bool) -> int | None:
    place = bisect.bisect_left(jobs, True, key=lambda job: room(job, fused=fused).enough)
    return jobs[place].nodes if place < len(jobs) else None
