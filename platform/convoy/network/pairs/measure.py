"""Measure links between ranks: latency, bandwidth in one and in both directions, message rate, and bisection.

A round trip carries a message one way after the other: its messages per second are half of what a link carries one way,
and so are its bytes per second, which is why half of its time counts as the time of a message.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from convoy.network.pairs.plan import PairTask, TaskTimes, pair_tasks, window_probes
from convoy.network.timing import BLOCK_SECONDS, CheckedTimes, Meeting, time_checked

PERIOD = 251
"""Bytes after which a rank's pattern repeats: a prime, so that messages of one window differ."""

_PROBES = 2
"""Timed windows of each pair, from which the sizes are chosen."""


def measure_pairs(
    meeting: Meeting,
    group: dist.ProcessGroup | None,
    largest: int,
    rounds: int,
    *,
    block_seconds: float = BLOCK_SECONDS,
    progress: Callable[[], None] = lambda: None,
) -> dict[PairTask, TaskTimes]:
    """Time every task of `pair_tasks` in turns, and return the times by pair. All ranks call it alike.

    group: all ranks, for the messages; None: torch's default group. largest: bytes of the largest message that is
    asked for. progress: called after each block, on each rank.
    """
    dist.all_reduce(torch.zeros(1, device=meeting.device), group=group)  # NCCL connects all ranks in their first call
    probes = window_probes(meeting.hosts, largest)
    found = time_tasks(probes, meeting, group, _PROBES, block_seconds=0.0)
    slowest = min(task.bytes / min(times.blocks) for task, times in found.items())
    tasks = pair_tasks(meeting.hosts, largest, slowest)
    return time_tasks(tasks, meeting, group, rounds, block_seconds=block_seconds, progress=progress)


def time_tasks(
    tasks: list[PairTask],
    meeting: Meeting,
    group: dist.ProcessGroup | None,
    rounds: int,
    *,
    block_seconds: float = BLOCK_SECONDS,
    progress: Callable[[], None] = lambda: None,
) -> dict[PairTask, TaskTimes]:
    """Time the tasks in turns, and return times by pair. All ranks call it alike. Arguments: as for `measure_pairs`."""
    calls = _calls(tasks, meeting, group)
    measured = time_checked(calls, meeting, rounds, block_seconds=block_seconds, progress=progress)
    found = {
        task: TaskTimes(each.times.block_medians, each.wrong)
        for task, each in measured.items()
        if task.by_pair() == (task,)
    }
    at_once = {task: each for task, each in measured.items() if task not in found}
    if at_once:
        found |= _by_pair(at_once, meeting)
    return {task: _halved(each) if task.kind == "half round trip" else each for task, each in found.items()}


def _by_pair(measured: Mapping[PairTask, CheckedTimes], meeting: Meeting) -> dict[PairTask, TaskTimes]:
    """Times and wrong bytes of each of the pairs that were timed at once: the slower rank's times."""
    own = {
        _name(task): (each.times.own_block_medians, each.own_wrong)
        for task, each in measured.items()
        if any(meeting.rank in pair for pair in task.pairs)
    }
    ranks: list[Any] = meeting.gather(own)
    found = {}
    for task in measured:
        for each in task.by_pair():
            (blocks, wrong), (others, others_wrong) = (ranks[rank][_name(task)] for rank in each.pairs[0])
            found[each] = TaskTimes(tuple(map(max, blocks, others)), wrong + others_wrong)
    return found


def _name(task: PairTask) -> str:
    """Of a task among those of several pairs, in few bytes."""
    return f"{task.kind}.{task.link}.{task.size}"


def _halved(times: TaskTimes) -> TaskTimes:
    return times._replace(blocks=tuple(0.5 * each for each in times.blocks))


class Buffers(NamedTuple):
    """The buffers of a rank, which all its tasks use in turn. 1-D, uint8."""

    sent: torch.Tensor
    """This rank's pattern, as long as the longest window."""
    received: torch.Tensor
    answer: torch.Tensor
    """One byte."""


class TaskCall:
    """A task on this rank: the messages that it sends and receives, in buffers that all tasks share."""

    def __init__(self, task: PairTask, rank: int, buffers: Buffers, group: dist.ProcessGroup | None) -> None:
        """group: all ranks; None: torch's default group."""
        total = task.size * task.messages
        self._received = buffers.received[:total]
        self._sender: int | None = None
        self._steps: list[list[dist.P2POp]] = []
        own = next((pair for pair in task.pairs if rank in pair), None)
        if own is None:
            return
        source, (peer,) = rank == own[0], {*own} - {rank}
        self._steps = _steps(task, source, peer, buffers, group)
        if task.both or task.kind == "half round trip" or not source:
            self._sender = peer

    def run(self) -> None:
        """Carry out the task once. It returns when this rank's part is done, or on GPUs enqueued."""
        for step in self._steps:
            for work in dist.batch_isend_irecv(step):
                work.wait()

    def check(self) -> int:
        """Carry out the task once; returns the number of wrong bytes that this rank received."""
        self._received.zero_()
        self.run()
        if self._sender is None:
            return 0
        # Not kept: the tasks of many hosts would hold as much memory as a model.
        expected = pattern(self._sender, len(self._received)).to(self._received.device)
        return int((self._received != expected).sum())


def _steps(
    task: PairTask, source: bool, peer: int, buffers: Buffers, group: dist.ProcessGroup | None
) -> list[list[dist.P2POp]]:
    """Batches of messages of one rank of a pair. source: whether the rank is the source. Receives come first in each
    batch: gloo sends data only once a receive waits for it."""

    def messages(call: Callable[..., object], buffer: torch.Tensor) -> list[dist.P2POp]:
        parts = buffer[: task.size * task.messages].split(task.size)
        return [dist.P2POp(call, part, group=group, group_peer=peer) for part in parts]

    receives, sends = messages(dist.irecv, buffers.received), messages(dist.isend, buffers.sent)
    if task.both:
        return [receives + sends]
    if task.kind == "half round trip":
        return [receives + sends] if source else [receives, sends]
    answer = dist.P2POp(dist.irecv if source else dist.isend, buffers.answer, group=group, group_peer=peer)
    if buffers.sent.device.type == "cuda":  # one batch of NCCL ends as a whole, and the answer follows the messages
        return [sends, [answer]] if source else [receives, [answer]]
    return [[answer, *sends]] if source else [receives, [answer]]


def pattern(rank: int, count: int) -> torch.Tensor:
    """The `count` bytes that a rank sends: 1-D, uint8, never 0, and different for each of 251 ranks."""
    values = (torch.arange(PERIOD) * 7 + 31 * rank) % PERIOD + 1
    return values.to(torch.uint8).repeat(-(-count // PERIOD))[:count]


def _calls(tasks: list[PairTask], meeting: Meeting, group: dist.ProcessGroup | None) -> dict[PairTask, TaskCall]:
    longest = max(task.size * task.messages for task in tasks)
    buffers = Buffers(
        sent=pattern(meeting.rank, longest).to(meeting.device),
        received=torch.zeros(longest, dtype=torch.uint8, device=meeting.device),
        answer=torch.zeros(1, dtype=torch.uint8, device=meeting.device),
    )
    return {task: TaskCall(task, meeting.rank, buffers, group) for task in tasks}
