"""What a job takes of each GPU's memory, part by part at the peak of a step, whether it fits; and of each machine's.

Weights, gradients, activations and buffers are those of tensors, followed through a step (`replay.py`). What CUDA, NCCL
and the allocator take beside them are the constants here. Derivation and checks: docs/planner.md#memory.
"""

from dataclasses import dataclass
from typing import NamedTuple

from convoy.config.checkpoint import CheckpointConfig
from convoy.model.counts import parameter_count
from convoy.planner.replay import replay
from convoy.planner.tally import Part, Tally
from convoy.planner.units import stages
from convoy.planner.workload import Workload

DRIVER_SHARE = 0.01
"""Of a GPU's nominal memory, that CUDA does not offer. An H200 of 144,384 MiB offers about 139.8 GiB (2026-11, driver
of the device this project's GPU tests ran on)."""

CONTEXT_BYTES = 500 * 2**20
"""CUDA's context with the kernels that are loaded, and cuBLAS's workspace: usual for A100 and H100 (2026-11, not
measured here)."""

NCCL_BYTES = 300 * 2**20
"""NCCL's buffers of one process, whose channels have 4 MiB for each peer that they talk to (`NCCL_BUFFSIZE`); a few
groups of them (2026-11, not measured here)."""

PROCESS_BYTES = 4096 * 2**20
"""Of host memory for each rank on a GPU: torch, CUDA's and NCCL's host side, and the writer of checkpoints
(`launch/sizing.py`)."""

RELIABLE_SHARE = 0.9
"""Up to so much of what there is, a prediction is trusted. Above it the allocator's fragments decide: the steps of a
run that is nearly out of memory are slow, or it fails after hours."""

STATE_BYTES = 12
"""Per parameter in a checkpoint: fp32 weight and two AdamW moments."""

COPIES = 2
"""Staged: one is written while the next is made."""

UNEVEN = 1.1
"""The share of a rank is taken to be so many times the mean: tensors are not cut to be equal."""

HOST_SHARE = 0.85
"""Of a machine's nominal memory that a task may have (`launch/sizing.py`)."""


@dataclass(frozen=True)
class Memory:
    """Of one rank that takes most, in bytes."""

    parts: dict[Part, int]
    """At the peak; together they are `peak`."""
    fixed: int
    """That CUDA, NCCL and the driver take beside tensors."""
    nominal: int
    """Of the data sheet."""

    @property
    def peak(self) -> int:
        """Of all tensors at once."""
        return sum(self.parts.values())

    @property
    def total(self) -> int:
        return self.peak + self.fixed

    @property
    def capacity(self) -> int:
        """For tensors."""
        return self.nominal - self.fixed

    @property
    def margin(self) -> int:
        """Left over; below 0: lacking."""
        return self.capacity - self.peak

    @property
    def share(self) -> float:
        """Taken of what there is for tensors."""
        return self.peak / self.capacity if self.capacity > 0 else float("inf")

    @property
    def fits(self) -> bool:
        return self.share <= 1

    @property
    def reliable(self) -> bool:
        """Whether that it fits, or not, can be counted on."""
        return self.share <= RELIABLE_SHARE


class HostMemory(NamedTuple):
    """Of one machine, in bytes."""

    states: int
    """Weights, gradients and moments, where they are in host memory."""
    staged: int
    """Copies of the state that checkpoints are written from."""
    processes: int
    capacity: int
    """That a task may have."""

    @property
    def total(self) -> int:
        return self.states + self.staged + self.processes

    @property
    def fits(self) -> bool:
        return self.total <= self.capacity


def memory(workload: Workload, *, fused: bool = True) -> Memory:
    """Of the stage whose ranks take most. fused: `optimizer.fused`."""
    return Memory(peak(workload, fused=fused), fixed(workload), int(workload.machine.memory_bytes))


def peak(workload: Workload, *, fused: bool = True) -> dict[Part, int]:
    """Bytes of all tensors of such a rank, by what they are for."""
    return max(_stages(workload, fused), key=lambda tally: tally.most).peak


def fixed(workload: Workload) -> int:
    """Bytes that CUDA, NCCL and the driver take of its memory."""
    if workload.machine.gpu == "cpu":
        return 0
    nccl = NCCL_BYTES if workload.ranks > 1 else 0
    return CONTEXT_BYTES + nccl + int(DRIVER_SHARE * workload.machine.memory_bytes)


def host_memory(workload: Workload, checkpoint: CheckpointConfig) -> HostMemory:
    """checkpoint: what is staged does not depend on where it goes, nor on how often."""
    machine, sharing = workload.machine, max(workload.sharing, workload.parallel.shared_by)
    whole = parameter_count(workload.model)
    in_host = machine.gpu == "cpu" or workload.parallel.cpu_offload
    states = 16 * whole * machine.ranks // sharing if in_host else 0
    staged = int(COPIES * UNEVEN * STATE_BYTES * whole / workload.nodes)
    processes = 0 if machine.gpu == "cpu" else PROCESS_BYTES * machine.ranks
    return HostMemory(states, staged, processes, int(HOST_SHARE * machine.host_bytes))


def _stages(workload: Workload, fused: bool) -> list[Tally]:
    each = stages(workload)
    return [
        replay(workload, stage, in_flight=min(len(each) - i, workload.passes), fused=fused)
        for i, stage in enumerate(each)
    ]
