"""What a job takes of each GPU's memory, part by part at the peak of a step, and whether it fits.

Weights, gradients, activations and buffers are those of tensors, followed through a step (`replay.py`). What CUDA, NCCL
and the allocator take beside them are the constants here. Derivation and checks: docs/explanation/memory.md.
"""

from dataclasses import dataclass

from convoy.planner.memory.host import beside
from convoy.planner.memory.replay import replay
from convoy.planner.memory.tally import Part, Tally
from convoy.planner.step.fsdp_units import stages
from convoy.planner.workload import Workload

DRIVER_SHARE = 0.0125
"""Of a GPU's nominal memory, that CUDA does not offer: PyTorch's messages tell of 39.5 to 39.6 GiB on an A100 of 40,
and of 79.1 to 79.3 on A100 and H100 of 80 (issues of several projects, 2023 to 2026)."""

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
    """Of one rank that takes most, in bytes."""

    parts: dict[Part, int]
    """At the peak; together they are `peak`."""
    fixed: int
    """That CUDA, NCCL and the driver take beside tensors; without a GPU what else is in the rank's part of the host."""
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
        """For tensors; 0 where what is beside them takes everything."""
        return max(0, self.nominal - self.fixed)

    @property
    def margin(self) -> int:
        """Left over; below 0: lacking."""
        return self.nominal - self.total

    @property
    def share(self) -> float:
        """Taken of what there is for tensors; where nothing is left for them, all that is taken of all there is."""
        return self.peak / self.capacity if self.capacity > 0 else self.total / self.nominal

    @property
    def fits(self) -> bool:
        return self.share <= 1

    @property
    def reliable(self) -> bool:
        """Whether that it fits, or not, can be counted on."""
        return self.share <= RELIABLE_SHARE


def memory(workload: Workload, *, fused: bool = True, fused_loss: bool = False) -> Memory:
    """Of the stage whose ranks take most. fused: `optimizer.fused`. fused_loss: as `Kernels` has it."""
    parts = peak(workload, fused=fused, fused_loss=fused_loss)
    return Memory(parts, fixed(workload), int(workload.machine.memory_bytes))


def peak(workload: Workload, *, fused: bool = True, fused_loss: bool = False) -> dict[Part, int]:
    """Bytes of all tensors of such a rank, by what they are for."""
    return max(_stages(workload, fused, fused_loss), key=lambda tally: tally.most).peak


def fixed(workload: Workload) -> int:
    """Bytes that CUDA, NCCL and the driver take of its memory, or that are not for its tensors on a host."""
    if workload.machine.gpu == "cpu":
        return beside(workload)
    nccl = NCCL_BYTES if workload.ranks > 1 else 0
    return CONTEXT_BYTES + nccl + int(DRIVER_SHARE * workload.machine.memory_bytes)


def _stages(workload: Workload, fused: bool, fused_loss: bool) -> list[Tally]:
    each = stages(workload)
    return [
        replay(workload, stage, in_flight=min(len(each) - i, workload.passes), fused=fused, fused_loss=fused_loss)
        for i, stage in enumerate(each)
    ]
