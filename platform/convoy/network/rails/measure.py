"""Measure buffers over several rails between two hosts: on one rail, split over all, or round-robin.

Over gloo a rail is a process group on one interface; torch's `new_group` takes no notice of options that choose it, so
the groups are made by themselves. Between GPUs a rail is a communicator of NCCL, which chooses the adapters itself.
"""

import datetime
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from convoy.network.counters import read_counters
from convoy.network.interfaces import Interface, ipv4_interfaces
from convoy.network.pairs.measure import pattern
from convoy.network.rails.plan import RailTask, RailTimes, common_rails, rail_messages, rail_tasks
from convoy.network.timing import BLOCK_SECONDS, Meeting, time_checked

COMMUNICATORS = 4
"""Number of rails between GPUs."""

CONNECT_TIMEOUT = datetime.timedelta(seconds=60)

PROVEN_BYTES = 2**20
"""Bytes sent over each rail to verify that its interface carries them."""

PROVEN_SHARE = 0.9
"""Share of these bytes that an interface must have counted; with headers it counts more than all of them."""


class RailsResult(NamedTuple):
    """Times between two hosts, the same on all ranks."""

    rails: int
    times: dict[RailTask, RailTimes]
    why_not: str
    """The reason why nothing was measured, in one line; empty: it was measured."""


def measure_rails(
    meeting: Meeting,
    ends: tuple[int, int],
    largest: int,
    rounds: int,
    *,
    block_seconds: float = BLOCK_SECONDS,
    progress: Callable[[], None] = lambda: None,
) -> RailsResult:
    """Time every task of `rail_tasks` from the first of two ranks to the second, in turns. All ranks call it alike.

    ends: the two ranks. largest: bytes of the largest buffer. progress: called after each block, on each rank.
    """
    rails, why_not = _open_rails(meeting, ends)
    if why_not:
        return RailsResult(0, {}, why_not)
    count = int(str(meeting.gather(len(rails))[ends[0]]))
    tasks = rail_tasks(largest)
    buffer = _buffer(meeting, ends, max(task.buffers * task.size for task in tasks))
    calls = {task: RailCall(task, meeting, ends, rails, buffer) for task in tasks}
    measured = time_checked(calls, meeting, rounds, block_seconds=block_seconds, progress=progress)
    times = {task: RailTimes(found.times.block_medians, found.wrong) for task, found in measured.items()}
    return RailsResult(count, times, "")


class RailCall:
    """A task on this rank, in a buffer that all tasks share."""

    def __init__(
        self, task: RailTask, meeting: Meeting, ends: tuple[int, int], rails: Sequence[Any], buffer: torch.Tensor
    ) -> None:
        """rails: groups of the two ranks, in which they are 0 and 1; empty on any other rank. buffer: from which this
        rank sends, or into which it receives; tasks share it."""
        self._source, target = ends
        self._sends, self._rails = meeting.rank == self._source, rails
        self._buffer = buffer[: task.buffers * task.size]
        self._answer = torch.zeros(1, dtype=torch.uint8, device=meeting.device)
        messages = rail_messages(task, len(rails), self._source, target) if rails else []
        self._messages = [(rails[each.rail], buffer[each.start : each.stop]) for each in messages]

    def run(self) -> None:
        """Carry out the task once. It returns when this rank's part is done, or on GPUs enqueued."""
        if not self._messages:
            return
        if self._sends:
            pending = [rail.send([part], 1, 0) for rail, part in self._messages]
            pending.append(self._rails[0].recv([self._answer], 1, 0))
        else:
            pending = [rail.recv([part], 0, 0) for rail, part in self._messages]
        for work in pending:
            work.wait()
        if not self._sends:
            self._rails[0].send([self._answer], 0, 0).wait()

    def check(self) -> int:
        """Carry out the task once; returns the number of wrong bytes that this rank received."""
        if self._sends or not self._messages:
            self.run()
            return 0
        self._buffer.zero_()
        self.run()
        return int((self._buffer != pattern(self._source, len(self._buffer)).to(self._buffer.device)).sum())


def _buffer(meeting: Meeting, ends: tuple[int, int], size: int) -> torch.Tensor:
    """This rank's buffer for tasks of up to `size` bytes; empty if it takes no part in them."""
    size = size if meeting.rank in ends else 0
    return pattern(meeting.rank, size).to(meeting.device)


def _open_rails(meeting: Meeting, ends: tuple[int, int]) -> tuple[list[Any], str]:
    """Groups of the two ranks, one for each rail, and the reason if there are none. All ranks call it alike."""
    if meeting.hosts[ends[0]] == meeting.hosts[ends[1]]:
        return [], "there is one host, and rails are between two"
    if meeting.device.type == "cuda":
        groups = [dist.new_group(list(ends)) for _ in range(COMMUNICATORS)]
        return (groups if meeting.rank in ends else []), ""
    listed: list[Any] = meeting.gather(ipv4_interfaces())
    pairs = common_rails(*(listed[rank] for rank in ends))
    if len(pairs) < 2:
        names = ", ".join(each.name for each in listed[ends[0]]) or "none"
        return [], f"the two hosts share {len(pairs)} networks, and rails are at least two (interfaces: {names})"
    prefix = meeting.gather(uuid.uuid4().hex)[ends[0]]
    rails, error = [], ""
    if meeting.rank in ends:
        own = ends.index(meeting.rank)
        try:
            rails = [open_gloo_rail(pair[own], own, f"{prefix}-{number}") for number, pair in enumerate(pairs)]
        except RuntimeError as failure:
            error = str(failure).splitlines()[0]
    error = next((str(each) for each in meeting.gather(error) if each), "")
    if error:
        return [], f"two interfaces do not reach each other: {error}"
    return rails, _unused_rail(meeting, ends, rails, [pair[0].name for pair in pairs])


def open_gloo_rail(interface: Interface, rank: int, prefix: str) -> Any:
    """A group of two ranks on an interface of this host. rank: 0 or 1. prefix: names the group, the same on both ranks.
    Raises RuntimeError if they do not meet."""
    gloo: Any = dist.ProcessGroupGloo  # whose options torch does not declare
    options = gloo._Options()
    options._devices = [gloo.create_device(interface=interface.name)]
    options._timeout = CONNECT_TIMEOUT
    store = dist.PrefixStore(prefix, dist.distributed_c10d._get_default_store())
    return gloo(store, rank, 2, options)


def _unused_rail(meeting: Meeting, ends: tuple[int, int], rails: Sequence[Any], names: Sequence[str]) -> str:
    """Why what is sent over a rail is not carried by its interface, as where routes of the host decide; empty: each
    interface counted what was sent over it."""
    problem, task = "", RailTask("one rail", 1, PROVEN_BYTES)
    buffer = _buffer(meeting, ends, PROVEN_BYTES)
    for number, name in enumerate(names):
        call = RailCall(task, meeting, ends, rails[number : number + 1], buffer)
        before = read_counters().interfaces
        call.run()
        meeting.barrier()
        sent = read_counters().interfaces
        if meeting.rank != ends[0]:
            continue
        counted = sent[name]["sent_bytes"] - before[name]["sent_bytes"]
        if counted < PROVEN_SHARE * PROVEN_BYTES and not problem:
            problem = f"what is sent from the address of {name} leaves the host by another interface"
    return str(meeting.gather(problem)[ends[0]])
