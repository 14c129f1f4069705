"""Memory that a job needs on each GPU, part by part at the peak of a step, and whether it fits.

Weights, gradients, activations and buffers are those of tensors, followed through a step (`replay.py`). What CUDA, NCCL
and the allocator take on top are the constants here. Derivation and checks: docs/explanation/memory.md.
"""

from dataclasses import dataclass

from convoy.planner.memory.host import reserved_bytes
from convoy.planner.memory.replay import replay
from convoy.planner.memory.tally import Part
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
    def of(cls, parts: dict[Part, int], fixed: int, nominal: int) -> "Memory":
        peak, capacity = sum(parts.values()), max(0, nominal - fixed)
        share = peak / capacity if capacity > 0 else (peak + fixed) / nominal
        fits, reliable = share <= 1, share <= RELIABLE_SHARE
        return cls(parts, peak, fixed, nominal, capacity, nominal - peak - fixed, share, fits, reliable)


def memory(workload: Workload, *, fused: bool = True) -> Memory:
    """Memory of the pipeline stage that takes most. fused: `optimizer.fused`."""
    parts = peak(workload, fused=fused)
    return Memory.of(parts, fixed(workload), int(workload.machine.memory_bytes))


def peak(workload: Workload, *, fused: bool = True) -> dict[Part, int]:
    """Bytes of all tensors of a rank at the peak of a step, by what they are for."""
    stage = stages(workload)
    tallies = (
        replay(workload, each, in_flight=min(len(stage) - i, workload.passes), fused=fused)
        for i, each in enumerate(stage)
    )
    return max(tallies, key=lambda tally: tally.most).peak


def fixed(workload: Workload) -> int:
    """`Memory.fixed_bytes` of a rank."""
    if workload.machine.gpu == "cpu":
        return reserved_bytes(workload)
    nccl = NCCL_BYTES if workload.ranks > 1 else 0
    return CONTEXT_BYTES + nccl + int(DRIVER_SHARE * workload.machine.memory_bytes)
