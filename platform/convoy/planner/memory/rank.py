"""Memory that a job needs on each rank, part by part at the peak of a step, and on how many machines it has room.

Weights, gradients, activations and buffers are those of tensors, followed through a step (`replay.py`). What CUDA, NCCL
and the allocator take on top are the constants here. Derivation and checks: docs/explanation/memory.md.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from convoy.display.formatting import gib
from convoy.planner.memory.accumulator import Part
from convoy.planner.memory.host import HostMemory, cpu_reserved_bytes, host_memory
from convoy.planner.memory.replay import replay_step
from convoy.planner.step.fsdp_units import stages
from convoy.planner.workload import Workload

DRIVER_SHARE = 0.0125
"""Share of a GPU's nominal memory that CUDA does not offer: PyTorch's messages report 39.5 to 39.6 GiB on an A100 of
40, and 79.1 to 79.3 on A100 and H100 of 80 (issues of several projects, 2023 to 2026)."""

CONTEXT_BYTES = 300 * 2**20
"""CUDA's context, with kernels that are loaded when they are needed (pytorch/pytorch issue 107667, 2023-08)."""

NCCL_BYTES = 656 * 2**20
"""Buffers of a group of more than two A100 with NVLink (NVIDIA/nccl issue 964, 2023-08). Further groups, such as those
of replicas, take more, which is not counted: how much depends on what connects them."""

RELIABLE_SHARE = 0.9
"""Up to so much of what there is, a prediction is trusted. Above it the allocator's fragments decide: the steps of a
run that is nearly out of memory are slow, or it fails after hours."""


@dataclass(frozen=True)
class Memory:
    """Memory of a rank that takes most, at the peak of a step: its GPU's, or without a GPU its part of the host's."""

    parts: dict[Part, int]
    """Bytes of tensors, by what they are for; together `peak_bytes`."""
    peak_bytes: int
    fixed_bytes: int
    """Bytes that CUDA, NCCL and the driver take; without a GPU those of staged copies, processes and the system."""
    nominal_bytes: int
    """By the data sheet; without a GPU the rank's part of the host."""
    capacity_bytes: int
    """What is left for tensors; 0 where the fixed part takes everything."""
    margin_bytes: int
    """Left over at the peak; below 0: lacking."""
    share: float
    """Peak over capacity; where there is no capacity, all that is taken over the nominal memory."""
    fits: bool
    reliable: bool
    """Whether a run can count on it: up to 90 % of the capacity."""

    @classmethod
    def of(cls, parts: dict[Part, int], fixed_bytes: int, nominal_bytes: int) -> "Memory":
        peak, room = sum(parts.values()), nominal_bytes - fixed_bytes
        share = peak / room if room > 0 else (peak + fixed_bytes) / nominal_bytes
        fits, reliable = share <= 1, share <= RELIABLE_SHARE
        return cls(parts, peak, fixed_bytes, nominal_bytes, max(0, room), room - peak, share, fits, reliable)


def rank_memory(workload: Workload, *, fused: bool = True) -> Memory:
    """Memory of the pipeline stage that takes most. fused: `optimizer.fused`."""
    parts = peak_bytes_by_part(workload, fused=fused)
    return Memory.of(parts, fixed_bytes(workload), int(workload.machine.memory_bytes))


def peak_bytes_by_part(workload: Workload, *, fused: bool = True) -> dict[Part, int]:
    """Bytes of all tensors of a rank at the peak of a step, by what they are for."""
    stage = stages(workload)
    accumulators = (
        replay_step(workload, each, in_flight=min(len(stage) - i, workload.passes), fused=fused)
        for i, each in enumerate(stage)
    )
    return max(accumulators, key=lambda accumulator: accumulator.most).peak


def fixed_bytes(workload: Workload) -> int:
    """`Memory.fixed_bytes` of a rank."""
    if workload.machine.gpu == "cpu":
        return cpu_reserved_bytes(workload)
    nccl = NCCL_BYTES if workload.ranks > 1 else 0
    return CONTEXT_BYTES + nccl + int(DRIVER_SHARE * workload.machine.memory_bytes)


MAX_NODES = 4096


class MemoryFit(NamedTuple):
    """Memory of a rank, and a machine's own; None: the machine's memory is not known."""

    memory: Memory
    host: HostMemory | None

    @property
    def reliable(self) -> bool:
        """That it fits can be counted on."""
        return not shortage_text(self.memory, self.host)


def memory_fit(job: Workload, *, fused: bool) -> MemoryFit:
    """fused: `optimizer.fused`."""
    return fit_with_host(job, rank_memory(job, fused=fused))


def fit_with_host(job: Workload, needed: Memory) -> MemoryFit:
    return MemoryFit(needed, host_memory(job, needed.peak_bytes) if job.machine.host_bytes else None)


def shortage_text(needed: Memory | None, host: HostMemory | None) -> str:
    """What is short, or why the estimate is unreliable; empty if neither applies, or memory is not known."""
    lacking = []
    if needed is not None and not needed.fits:
        lacking.append(f"{gib(-needed.margin_bytes)} more than a rank has")
    if host is not None and not host.fits:
        lacking.append(f"{gib(host.total_bytes - host.capacity_bytes)} more of its own memory than a machine has")
    if not lacking and needed is not None and not needed.reliable:
        return f"takes {needed.share:.0%} of what a rank has: above 90 % the estimate cannot say whether it fits"
    return ", and ".join(lacking)


def least_nodes(job: Workload, *, fused: bool) -> int | None:
    """The fewest machines, more than it has, on which the same configuration has room; None: more of them do not help.

    Among those with equally many sequences a pass, more machines need no more memory of each, so a bisection finds it.
    """
    most = min(MAX_NODES, job.train.global_batch * job.parallel.ranks_per_sample // job.machine.ranks)
    alike: dict[int, list[Workload]] = {}
    for nodes in range(job.nodes + 1, most + 1):
        try:
            larger = replace(job, nodes=nodes)
        except ValueError:
            continue  # so many ranks cannot be divided as configured
        alike.setdefault(larger.sequences_per_pass, []).append(larger)
    smallest = (_fewest_nodes_with_room(jobs, fused) for jobs in alike.values())
    return min((nodes for nodes in smallest if nodes is not None), default=None)


def _fewest_nodes_with_room(jobs: Sequence[Workload], fused: bool) -> int | None:
    place = bisect.bisect_left(jobs, True, key=lambda job: memory_fit(job, fused=fused).reliable)
    return jobs[place].nodes if place < len(jobs) else None
