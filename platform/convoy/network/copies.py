"""Copies between the memory of a host and that of its GPUs, from pinned and from pageable memory.

All ranks of a host copy at once, as they do in offloading and when a checkpoint is staged, so that they share its PCIe
switches and its memory bandwidth. CUDA copies pageable memory by way of a pinned buffer of its own, and the host waits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch

from convoy.network.pairs.measure import pattern
from convoy.network.timing import Meeting, OperationTimes, time_in_turns

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


class CopyTimes(NamedTuple):
    """Copies of one kind and size; the same on all ranks."""

    times: OperationTimes
    wrong: int
    """Bytes on all ranks that were not what they should be after the copy."""


class NoGpuError(RuntimeError):
    """There is no GPU to copy to."""


def measure_copies(
    meeting: Meeting, sizes: Sequence[int], rounds: int, progress: Callable[[], None] = lambda: None
) -> dict[Copy, dict[int, CopyTimes]]:
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
) -> dict[Copy, dict[int, CopyTimes]]:
    """As `measure_copies`, between these memories of a host and another buffer, all of the largest size in bytes."""
    found: dict[Copy, dict[int, CopyTimes]] = {copy: {} for copy in COPIES}
    expected = pattern(meeting.rank, max(sizes))
    for size in sizes:
        ends = {copy: _ends(copy, memories[copy.memory][:size], other[:size]) for copy in COPIES}
        wrong = {copy: _wrong_bytes(*ends[copy], expected[:size], meeting) for copy in COPIES}
        times = time_in_turns({str(copy): _call(*ends[copy]) for copy in COPIES}, meeting, rounds, progress=progress)
        totals = meeting.sum([wrong[copy] + _wrong_bytes(*ends[copy], expected[:size], meeting) for copy in COPIES])
        for copy, total in zip(COPIES, totals, strict=True):
            found[copy][size] = CopyTimes(times[str(copy)], round(total))
    return found


def _ends(copy: Copy, host: torch.Tensor, gpu: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the bytes come from, and where they go."""
    return (host, gpu) if copy.direction == "host to GPU" else (gpu, host)


def _call(source: torch.Tensor, target: torch.Tensor) -> Callable[[], object]:
    """A copy that the host does not wait for, where the memory allows that."""
    return lambda: target.copy_(source, non_blocking=True)


def _wrong_bytes(source: torch.Tensor, target: torch.Tensor, expected: torch.Tensor, meeting: Meeting) -> int:
    """Copy once; how many bytes are not those that were at the source."""
    source.copy_(expected)
    target.zero_()
    meeting.synchronize()
    _call(source, target)()
    meeting.synchronize()
    return int((target.cpu() != expected).count_nonzero())
