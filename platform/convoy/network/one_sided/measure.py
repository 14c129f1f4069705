"""One-sided transfers between two ranks by NIXL: WRITE and READ, whose bytes are checked where they arrive.

The initiator makes all the calls, and the other rank only registers memory. Over TCP its agent's progress thread
answers; over RDMA its NIC does. Three modes take turns: see `network/one_sided/times.py`.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from convoy.network.one_sided.nixl_agents import DEADLINE_SECONDS, Agent, ProxyThread, RemoteMemory, import_nixl
from convoy.network.one_sided.times import (
    MODES,
    Mode,
    OneSidedResult,
    OneSidedTimes,
    PythonCosts,
    TransferOperation,
    transfers_of_operation,
)
from convoy.network.rdma_devices import efa_devices
from convoy.network.timing import Meeting, OperationTimes, time_in_turns

OPERATIONS: tuple[TransferOperation, ...] = ("WRITE", "READ")

PERIOD = 251
"""Bytes after which a pattern repeats: a prime, so that no two slots begin alike."""

COST_TRANSFERS = 32
"""Transfers that are timed call by call for `PythonCosts`, after all that is compared."""


@dataclass(frozen=True)
class OneSidedPlan:
    """The transfers to measure, and the two ranks between which they take place."""

    initiator: int
    target: int
    sizes: tuple[int, ...]
    """Transfer sizes in bytes."""
    window: int = 16
    """Largest number of transfers in flight, in all modes but blocking."""
    rounds: int = 5

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that each of the two ranks registers."""
        return max(size * self.slots(size) for size in self.sizes)

    def slots(self, size: int) -> int:
        """Number of places in memory that the transfers of an operation use in turn. size: bytes of a transfer."""
        return min(self.window, transfers_of_operation(size, self.window))

    def first_of(self, operation: TransferOperation, size: int) -> int:
        """Index of the first transfer of this kind among all that `_prepare` makes. size: bytes of a transfer."""
        kinds = [(each, other) for each in OPERATIONS for other in self.sizes]
        return sum(self.slots(other) for _, other in kinds[: kinds.index((operation, size))])


def measure_one_sided(
    plan: OneSidedPlan, meeting: Meeting, progress: Callable[[], None] = lambda: None
) -> OneSidedResult:
    """Times of each operation, size and mode. All ranks call it alike, and get the same.

    progress: called after each block. Where NIXL cannot be used on one of the two ranks, the result says why. Raises
    TransferError.
    """
    transport = os.environ.get("UCX_TLS", "")
    with _ends(plan, meeting) as end:
        if isinstance(end, str):
            return OneSidedResult("", transport, not_measured=end)
        times = [
            each
            for operation in OPERATIONS
            for size in plan.sizes
            for each in _Transfers(plan, operation, size, end, meeting).measure(progress)
        ]
        return OneSidedResult(end.backend, transport, tuple(times))


@dataclass(frozen=True)
class _End:
    """The resources of this rank. Ranks that only wait have no memory, and the target uses neither agent nor proxy."""

    backend: str
    memory: torch.Tensor
    agent: Agent | None = None
    transfers: Sequence[Any] = ()
    proxy: ProxyThread | None = None


@contextlib.contextmanager
def _ends(plan: OneSidedPlan, meeting: Meeting) -> Iterator[_End | str]:
    """The resources of this rank, or the reason why NIXL cannot be used, which is the same on all ranks."""
    takes_part = meeting.rank in (plan.initiator, plan.target)
    backend = "LIBFABRIC" if efa_devices() else "UCX"
    memory = torch.zeros(plan.memory_bytes if takes_part else 0, dtype=torch.uint8, device=meeting.device)
    answers = meeting.rank == plan.target
    agent, why = _open(f"rank {meeting.rank}", backend, memory, answers=answers) if takes_part else (None, "")
    remote: list[Any] = meeting.gather((why, backend, agent.remote_memory if agent else None))
    pair = [remote[plan.initiator], remote[plan.target]]
    reason = next((f"rank {rank}: {each[0]}" for rank, each in enumerate(remote) if each[0]), "")
    if not reason and pair[0][1] != pair[1][1]:
        reason = f"rank {plan.initiator} has {pair[0][1]} and rank {plan.target} has {pair[1][1]}"
    end = None
    if not reason and meeting.rank == plan.initiator:
        assert agent is not None
        try:
            end = _initiator(plan, backend, memory, agent, pair[1][2])
        except Exception as error:  # NIXL's own errors share no class
            reason = " ".join(f"rank {meeting.rank}: {error}".split())
    reason = next((str(each) for each in meeting.gather(reason) if each), "")
    if end is None:
        yield reason or _End(pair[0][1], memory)
    else:
        try:
            yield reason or end
        finally:
            assert end.proxy is not None
            end.proxy.close()
    if end is not None and agent is not None:
        agent.close(end.transfers)
    meeting.barrier()  # the target's memory goes after the initiator's transfers
    if end is None and agent is not None:
        agent.close()


def _open(name: str, backend: str, memory: torch.Tensor, *, answers: bool) -> tuple[Agent | None, str]:
    try:
        return Agent(import_nixl(), name, backend, memory, answers=answers), ""
    except Exception as error:  # NIXL's own errors share no class
        return None, " ".join(f"{error}".split()) or type(error).__name__


def _initiator(plan: OneSidedPlan, backend: str, memory: torch.Tensor, agent: Agent, target: RemoteMemory) -> _End:
    def proxied() -> tuple[Agent, list[Any]]:
        own = Agent(import_nixl(), f"proxy of rank {plan.initiator}", backend, memory, answers=False)
        return own, _prepare(plan, own, target)

    return _End(backend, memory, agent, _prepare(plan, agent, target), ProxyThread(proxied, plan.window))


def _prepare(plan: OneSidedPlan, agent: Agent, target: RemoteMemory) -> list[Any]:
    """Every transfer of the plan, in the order of `first_of`."""
    agent.connect(target)
    return [
        agent.prepare(operation, target, slot * size, size)
        for operation in OPERATIONS
        for size in plan.sizes
        for slot in range(plan.slots(size))
    ]


class _Transfers:
    """One operation of one size, in all modes."""

    def __init__(
        self, plan: OneSidedPlan, operation: TransferOperation, size: int, end: _End, meeting: Meeting
    ) -> None:
        self._plan, self._operation, self._size, self._end, self._meeting = plan, operation, size, end, meeting
        self._count = transfers_of_operation(size, plan.window)
        slots, first = plan.slots(size), plan.first_of(operation, size)
        self._numbers = [first + number % slots for number in range(self._count)]
        writes = operation == "WRITE"
        self._is_source = meeting.rank == (plan.initiator if writes else plan.target)
        self._is_destination = meeting.rank == (plan.target if writes else plan.initiator)
        self._used = end.memory[: slots * size]
        period = torch.arange(PERIOD, dtype=torch.uint8, device=end.memory.device)
        self._base = period.repeat(self._used.numel() // PERIOD + 1)[: self._used.numel()]
        self._round = 0
        self._mode: Mode = "blocking"
        self._wrong: dict[Mode, int] = dict.fromkeys(MODES, 0)
        self._checked: dict[Mode, int] = dict.fromkeys(MODES, 0)

    def measure(self, progress: Callable[[], None]) -> list[OneSidedTimes]:
        """Times of all modes. Each mode is checked once before it is timed, and again after each of its blocks, the
        very first of which follows warm-up transfers of the same bytes."""
        calls: dict[str, Callable[[], None]] = {mode: self._call(mode) for mode in MODES}
        self._refill()
        self._meeting.barrier()
        for call in calls.values():
            call()
            self._check()

        def checked() -> None:
            self._check()
            progress()

        times = time_in_turns(calls, self._meeting, self._plan.rounds, progress=checked)
        totals = self._meeting.sum([*self._wrong.values(), *self._checked.values()])
        (costs,) = [each for each in self._meeting.gather(self._costs()) if isinstance(each, PythonCosts)]
        return [
            self._times_of(mode, times[mode], int(totals[at]), int(totals[at + len(MODES)]), costs)
            for at, mode in enumerate(MODES)
        ]

    def _times_of(
        self, mode: Mode, times: OperationTimes, wrong: int, checked: int, costs: PythonCosts
    ) -> OneSidedTimes:
        return OneSidedTimes(
            operation=self._operation,
            mode=mode,
            size=self._size,
            window=1 if mode == "blocking" else self._plan.slots(self._size),
            transfers=self._count,
            blocks=tuple(each / self._count for each in times.blocks),
            operations=tuple(each / self._count for each in times.operations),
            wrong_bytes=wrong,
            checked_bytes=checked,
            costs=costs,
        )

    def _call(self, mode: Mode) -> Callable[[], None]:
        agent, proxy = self._end.agent, self._end.proxy
        transfers = [self._end.transfers[number] for number in self._numbers] if agent else []

        def call() -> None:
            self._mode = mode
            if agent is None or proxy is None:
                return
            if mode == "blocking":
                agent.blocking(transfers)
            elif mode == "window":
                agent.windowed(transfers, self._plan.window)
            else:
                self._submit_all(proxy)

        return call

    def _submit_all(self, proxy: ProxyThread) -> list[float]:
        """Transfer all by the proxy thread. Returns the seconds until the thread took each from the queue."""
        return [future.result(DEADLINE_SECONDS) for future in [proxy.submit(number) for number in self._numbers]]

    def _refill(self) -> None:
        """Write this round's pattern to the source of the bytes, and different bytes to their destination."""
        if self._is_source:
            torch.add(self._base, self._round % PERIOD, out=self._used)
        elif self._is_destination:
            torch.add(self._base, self._round % PERIOD + 1, out=self._used)
        self._meeting.synchronize()

    def _check(self) -> None:
        """Count the bytes that differ from the pattern, once the initiator has seen all transfers done."""
        self._meeting.barrier()
        if self._is_destination:
            expected = self._base + self._round % PERIOD
            self._wrong[self._mode] += int((self._used != expected).count_nonzero())
            self._checked[self._mode] += self._used.numel()
        self._round += 1
        self._refill()
        self._meeting.barrier()  # or the next transfer would write while its target still counts

    def _costs(self) -> PythonCosts | None:
        """Mean costs of transfers that the initiator repeats call by call; None on all other ranks."""
        agent, proxy = self._end.agent, self._end.proxy
        if agent is None or proxy is None:
            return None
        rows = [_cost_of(agent, self._end.transfers[self._numbers[0]]) for _ in range(COST_TRANSFERS)]
        post, nixl_post, transfer, total, polls = (statistics.fmean(column) for column in zip(*rows, strict=True))
        return PythonCosts(post, nixl_post, transfer, total, polls, statistics.fmean(self._submit_all(proxy)))


def _cost_of(agent: Agent, transfer: Any) -> tuple[float, float, float, float, float]:
    """Seconds of the post, of NIXL's part of it, of the transfer by NIXL and by Python, and the number of polls."""
    began = time.perf_counter()
    done = agent.post(transfer)
    posted = time.perf_counter()
    polls = 0
    while not done:
        done = agent.is_done(transfer)
        polls += 1
    total = time.perf_counter() - began
    return posted - began, *agent.reported_seconds(transfer), total, float(polls)
