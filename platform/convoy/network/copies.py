"""Copies between the memory of a host and that of its GPUs, from pinned and from pageable memory.

All ranks of a host copy at once, as they do in offloading and when a checkpoint is staged, so that they share its PCIe
switches and its memory bandwidth. CUDA copies pageable memory by way of a pinned buffer of its own, and the host waits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from convoy.network.pairs.measure import pattern
from convoy.network.timing import CheckedTimes, Meeting, time_checked

HostMemory = Literal["pageable", "pinned"]

Direction = Literal["host to GPU", "GPU to host"]


class Copy(NamedTuple):
    """A kind of copy."""

    memory: HostMemory
    direction: Direction

    def __str__(self) -> str:
        return f"{self.memory}, {self.direction}"


COPIES: tuple[Copy, ...] = (
    Copy("pageable", "host to GPU"),
    Copy("pinned", "host to GPU"),
    Copy("pageable", "GPU to host"),
    Copy("pinned", "GPU to host"),
)


class NoGpuError(RuntimeError):
    """There is no GPU to copy to."""


def measure_copies(
    meeting: Meeting, sizes: Sequence[int], rounds: int, progress: Callable[[], None] = lambda: None
) -> dict[Copy, dict[int, CheckedTimes]]:
    """Times of each kind of copy at each size in bytes, in turns. All ranks call it alike.

    progress: called after each block, on each rank. Raises NoGpuError on all ranks if any has no GPU.
    """
    without = [rank for rank, device in enumerate(meeting.gather(meeting.device.type)) if device != "cuda"]
    if without:
        raise NoGpuError("there is no GPU" if len(without) == meeting.ranks else f"rank {without[0]} has no GPU")
    memories: dict[HostMemory, torch.Tensor] = {
        "pageable": torch.empty(max(sizes), dtype=torch.uint8),
        "pinned": torch.empty(max(sizes), dtype=torch.uint8, pin_memory=True),
    }
    return time_copies(
        memories, torch.empty(max(sizes), dtype=torch.uint8, device=meeting.device), meeting, sizes, rounds, progress
    )


def time_copies(
    memories: Mapping[HostMemory, torch.Tensor],
    other: torch.Tensor,
    meeting: Meeting,
    sizes: Sequence[int],
    rounds: int,
    progress: Callable[[], None] = lambda: None,
) -> dict[Copy, dict[int, CheckedTimes]]:
    """As `measure_copies`, between these memories of a host and another buffer, all of the largest size in bytes."""
    found: dict[Copy, dict[int, CheckedTimes]] = {copy: {} for copy in COPIES}
    expected = pattern(meeting.rank, max(sizes))
    for size in sizes:
        calls = {copy: _call(copy, memories[copy.memory][:size], other[:size], expected[:size]) for copy in COPIES}
        for copy, times in time_checked(calls, meeting, rounds, progress=progress).items():
            found[copy][size] = times
    return found


def _call(copy: Copy, host: torch.Tensor, gpu: torch.Tensor, expected: torch.Tensor) -> "CopyCall":
    source, target = (host, gpu) if copy.direction == "host to GPU" else (gpu, host)
    return CopyCall(source, target, expected)


@dataclass(frozen=True)
class CopyCall:
    """A copy of this rank's between two memories of equal size."""

    source: torch.Tensor
    target: torch.Tensor
    expected: torch.Tensor
    """Bytes that are to arrive."""

    def run(self) -> None:
        """Copy, without waiting for the end where the memory allows that."""
        self.target.copy_(self.source, non_blocking=True)

    def check(self) -> int:
        """Copy once; how many bytes are not those that were at the source."""
        self.source.copy_(self.expected)
        self.target.zero_()
        self.run()
        if not self.source.is_cpu or not self.target.is_cpu:
            torch.cuda.synchronize()
        return int((self.target.cpu() != self.expected).count_nonzero())
