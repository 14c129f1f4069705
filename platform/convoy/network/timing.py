"""Interleaved timing of operations that all ranks execute together, which all of Convoy's network measurements use.

Each operation is timed in blocks, and in a round every operation has one block. The order is reversed with each round,
so that a network that becomes slower or faster does so for all alike; blocks of one round are a pair.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import torch
import torch.distributed as dist

BLOCK_SECONDS = 0.02
"""Shortest length of a block that makes the clock's and the scheduler's errors small."""

MAX_OPERATIONS = 100
"""Largest number of operations in a block."""

WARM_UP = 2
"""Untimed operations after the first one, which establishes connections and buffers."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Meeting:
    """The ranks that measure together, and how they communicate apart from the measured operations."""

    rank: int
    ranks: int
    control: dist.ProcessGroup
    """Group of gloo over all ranks."""
    device: torch.device
    """Device of the buffers: the host, or this rank's GPU."""
    hosts: tuple[str, ...]
    """Name of each rank's host, by rank; equal names share a host."""

    @property
    def host_ranks(self) -> tuple[int, ...]:
        """The first rank of each host, in the order of ranks."""
        return tuple(self.hosts.index(host) for host in dict.fromkeys(self.hosts))

    def barrier(self) -> None:
        """Wait until the device has completed all enqueued work, and every rank has called this."""
        self.synchronize()
        dist.barrier(group=self.control)

    def synchronize(self) -> None:
        """Wait until the device has completed all enqueued work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """The largest of each figure over all ranks, on all ranks."""
        return self._reduce(seconds, dist.ReduceOp.MAX)

    def sum(self, figures: Sequence[float]) -> list[float]:
        """The sum of each figure over all ranks, on all ranks."""
        return self._reduce(figures, dist.ReduceOp.SUM)

    def _reduce(self, figures: Sequence[float], op: dist.ReduceOp.RedOpType) -> list[float]:
        reduced = torch.tensor(figures, dtype=torch.float64)
        dist.all_reduce(reduced, op=op, group=self.control)
        return [float(each) for each in reduced.tolist()]

    def gather(self, value: object) -> list[object]:
        """Every rank's value, by rank, on all ranks."""
        values: list[object] = [None] * self.ranks
        dist.all_gather_object(values, value, group=self.control)
        return values


class OperationTimes(NamedTuple):
    """Seconds of one operation, the same on all ranks but for `own`."""

    blocks: tuple[float, ...]
    """Mean seconds of an operation in each block, on the slowest rank; by round."""
    operations: tuple[float, ...]
    """Seconds of each operation, on the rank where it took longest; in their order."""
    worst_rank: int
    """The rank whose operations took longest, by the median of each rank's own."""
    own: tuple[float, ...] = ()
    """Each operation by itself, of this rank; in their order."""

    @property
    def block_medians(self) -> tuple[float, ...]:
        """Median of the operations of each block, by round. A host that does something else for some milliseconds makes
        a few operations longer: a block of short ones is then several times as long, and its median hardly."""
        return self._medians(self.operations)

    @property
    def own_block_medians(self) -> tuple[float, ...]:
        """The same of this rank's own operations."""
        return self._medians(self.own)

    def _medians(self, operations: Sequence[float]) -> tuple[float, ...]:
        each = len(operations) // len(self.blocks)
        starts = range(0, len(operations), each)
        return tuple(statistics.median(operations[start : start + each]) for start in starts)


class CheckedCall(Protocol):
    """An operation whose results are known."""

    def run(self) -> object:
        """Carry out the operation once. It returns when this rank's part is done, or on GPUs enqueued."""

    def check(self) -> int:
        """Carry out the operation once; returns the number of wrong bytes or elements on this rank."""


class CheckedTimes(NamedTuple):
    """Times of a checked operation, the same on all ranks but for what is a rank's own."""

    times: OperationTimes
    wrong: int
    """Wrong bytes or elements of both checks, on all ranks together."""
    own_wrong: int
    """The same on this rank alone."""


def time_checked(
    calls: Mapping[Key, CheckedCall],
    meeting: Meeting,
    rounds: int,
    *,
    block_seconds: float = BLOCK_SECONDS,
    progress: Callable[[], None] = lambda: None,
    watch: Callable[[Key], AbstractContextManager[object]] = lambda _: nullcontext(),
) -> dict[Key, CheckedTimes]:
    """Times of each operation by its key, with a check of each before the first block and after the last one.

    Arguments: as for `time_in_turns`. All ranks call it alike.
    """
    before = [call.check() for call in calls.values()]
    times = time_in_turns(
        {key: call.run for key, call in calls.items()},
        meeting,
        rounds,
        block_seconds=block_seconds,
        progress=progress,
        watch=watch,
    )
    own = [first + call.check() for first, call in zip(before, calls.values(), strict=True)]
    wrong = [round(each) for each in meeting.sum(own)]
    return {key: CheckedTimes(times[key], *counts) for key, *counts in zip(calls, wrong, own, strict=True)}


def time_in_turns(
    calls: Mapping[Key, Callable[[], object]],
    meeting: Meeting,
    rounds: int,
    *,
    block_seconds: float = BLOCK_SECONDS,
    progress: Callable[[], None] = lambda: None,
    watch: Callable[[Key], AbstractContextManager[object]] = lambda _: nullcontext(),
) -> dict[Key, OperationTimes]:
    """Times of each call by its key. All ranks call it alike.

    A call returns once this rank's part is done on the host, or enqueued on the GPU. progress: called after each block,
    on each rank. watch: surrounds each timed block, by the key of its call; what it does itself is not timed.
    """
    amounts = {key: _operations_of_block(call, meeting, block_seconds) for key, call in calls.items()}
    own: dict[Key, list[float]] = {key: [] for key in calls}
    blocks: dict[Key, list[float]] = {key: [] for key in calls}
    keys = list(calls)
    for number in range(rounds):
        for key in keys if number % 2 == 0 else reversed(keys):
            with watch(key):
                times, whole = _time_block(calls[key], amounts[key], meeting)
            own[key] += times
            blocks[key].append(whole / amounts[key])
            progress()
    return {key: _times_of_all(blocks[key], own[key], meeting) for key in keys}


def _operations_of_block(call: Callable[[], object], meeting: Meeting, block_seconds: float) -> int:
    """Number of operations that fill a block, the same on all ranks."""
    call()
    _time_block(call, WARM_UP, meeting)
    _, once = _time_block(call, 1, meeting)
    (slowest,) = meeting.slowest([once])
    return max(1, min(MAX_OPERATIONS, math.ceil(block_seconds / slowest)))


def _time_block(call: Callable[[], object], operations: int, meeting: Meeting) -> tuple[list[float], float]:
    """Seconds of each operation and of the block, on this rank. The ranks begin together."""
    meeting.barrier()
    if meeting.device.type == "cuda":
        return _time_block_on_gpu(call, operations, meeting)
    times = [time.perf_counter()]
    for _ in range(operations):
        call()
        times.append(time.perf_counter())
    return [later - earlier for earlier, later in itertools.pairwise(times)], times[-1] - times[0]


def _time_block_on_gpu(call: Callable[[], object], operations: int, meeting: Meeting) -> tuple[list[float], float]:
    """Operations are enqueued without waiting for each other, as in training; events of the stream time them."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(operations + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    meeting.synchronize()
    times = [1e-3 * before.elapsed_time(after) for before, after in itertools.pairwise(events)]
    return times, sum(times)


def _times_of_all(blocks: Sequence[float], own: Sequence[float], meeting: Meeting) -> OperationTimes:
    medians = [float(str(each)) for each in meeting.gather(statistics.median(own))]
    return OperationTimes(
        blocks=tuple(meeting.slowest(blocks)),
        operations=tuple(meeting.slowest(own)),
        worst_rank=max(range(meeting.ranks), key=lambda rank: medians[rank]),
        own=tuple(own),
    )
