"""The saves of one rank, each from the staged state to its commit or its failure: under the trainer and `Checkpoints`.

The driver stages, submits, tries again, and has done what follows a commit. By what evidence a save under way is
settled, and when the ranks do so alike, is up to its `SaveAgreement`: the per-step exchange, or each rank by itself
until the next save.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from convoy.checkpoint.format import Commit
from convoy.checkpoint.messages import Committed, PostCommitTaskDone, Report, SaveFailed
from convoy.checkpoint.save.engine import CheckedState, SaveEngine
from convoy.checkpoint.save.post_commit import IDLE, BusyTiers, PendingWork, post_commit_request
from convoy.checkpoint.save.queue import SaveQueue, SettleResult, StatusCounts, WriteAttempt
from convoy.checkpoint.save.staging import StagedCopy
from convoy.job.lineage import CommitRef

REMEMBERED = 8
"""Settled saves that ranks still report to each other."""


@dataclass
class SaveTiming:
    """Timing of one save on this rank, in seconds."""

    began: float
    """When it began, by `time.perf_counter`."""
    waited: float
    """How long updates had waited for copies before this save, in all."""
    call: float = 0.0
    joined: float = 0.0
    """How long an update waited for the copy."""
    staged: float | None = None
    """From `began` until the copy was whole."""

    def elapsed(self) -> float:
        return time.perf_counter() - self.began


@dataclass(frozen=True)
class SaveOutcome:
    """The outcome of a save."""

    attempt: WriteAttempt
    error: str | None = None
    """Why there is no commit; None: there is one."""
    commit: Commit | None = None
    """The commit, where this rank has it already."""
    certain: bool = True
    """False: this rank has not heard what became of it, and the coordinator may have committed it."""

    @property
    def failure_text(self) -> str:
        """The outcome for people, where there is an error."""
        return f"step {self.attempt.step} {'was not' if self.certain else 'may not be'} saved"


@dataclass
class Save:
    """A save that was begun on this rank."""

    draft: Commit
    timing: SaveTiming
    busy: BusyTiers | None = None
    """The gang's other work when the save began, where that counts; None: its work at the time of the commit."""
    copy: StagedCopy | None = None
    certain: bool = True
    """The same as in its outcome."""
    outcome: "Future[SaveOutcome]" = field(default_factory=Future)


class SaveObserver(Protocol):
    """Reports to people. Called with the driver's lock held."""

    def on_committed(self, attempt: WriteAttempt, save: Save, commit: Commit | None) -> None: ...

    def on_moved_to_tier(self, attempt: WriteAttempt, error: str, retried: WriteAttempt) -> None:
        """The attempt failed, and the state is now written to the next tier."""

    def on_failed(self, outcome: SaveOutcome, failures: int, newest: CommitRef | None) -> None:
        """The save failed on every tier. failures: in a row. newest: the newest commit."""

    def report(self, report: Report) -> None:
        """A report of the writer process on its work between saves."""


class SaveAgreement(Protocol):
    """How the ranks come to settle their saves alike: it calls `SaveDriver.settle`."""

    def on_submit(self) -> None:
        """This rank has begun to write an attempt."""

    def failure_reason(self, attempt: WriteAttempt, own_error: str | None) -> str:
        """Why the attempt that is being settled failed. own_error: what this rank knows."""

    def wait_until_left(self, most_under_way: int, timeout_seconds: float | None) -> bool:
        """Wait until at most so many saves are under way; whether that came in time."""


@dataclass(eq=False)
class SaveDriver:
    """Thread-safe, but for the engine's plan and its hook, which are the caller's."""

    engine: SaveEngine
    agreement: SaveAgreement
    observer: SaveObserver
    _: KW_ONLY
    tiers: Sequence[str]
    """URIs of the job on each."""
    session: str
    """Random, and the same on every rank."""
    rank: int
    hosts: Sequence[str]
    """Of each rank."""
    deadline_seconds: float
    """Of a save, on each tier."""
    verify: bool
    """Have commits read back between saves."""

    def __post_init__(self) -> None:
        self.lock = threading.Condition(threading.RLock())
        """Held while the engine is used; notified when a save is settled."""
        self.queue = SaveQueue(len(self.tiers), self.session)
        self.saves: dict[int, Save] = {}
        """Those under way, by their number."""
        self.recent: deque[tuple[int, str | None]] = deque(maxlen=REMEMBERED)
        """Number and error of those that were settled."""
        self.errors: dict[str, str] = {}
        """Why attempts that are not settled yet have failed, as far as this rank knows."""
        self.commits: dict[str, Commit] = {}
        """Those of attempts that are not settled yet."""
        self.newest: CommitRef | None = None
        """The newest commit that was made here."""
        self.superseded: str | None = None
        """Why no save of this session counts any more."""
        self.pending = PendingWork()
        self._left_out: tuple[WriteAttempt, CommitRef, BusyTiers] | None = None
        """The newest commit, and the work that was left out for it because some rank was busy with an earlier one."""
        self._waiting = 0

    @property
    def steps(self) -> list[int]:
        """Those of the saves under way."""
        with self.lock:
            return self.queue.steps

    def begin(
        self,
        draft: Commit,
        state: Mapping[str, Any] | CheckedState,
        *,
        began: float | None = None,
        copy_now: bool = False,
        tier: int | None = None,
        busy: BusyTiers | None = None,
    ) -> Save:
        """Stage the state into a free slot and have it written, at once or after the save under way.

        began: by `time.perf_counter`, if not now. copy_now: all is copied on return. tier: as in `SaveQueue.add`. busy:
        as in `Save`. Raises ValueError if two saves are under way.
        """
        with self.lock:
            timing = SaveTiming(time.perf_counter() if began is None else began, self.engine.waited_seconds)
            save = Save(draft, timing, busy)
            if self.superseded is not None:  # since the ranks agreed to save
                save.outcome.set_result(SaveOutcome(WriteAttempt(draft.step, 0, 0, ""), error=self.superseded))
                return save
            save.copy = self.engine.stage(self.queue.free_slot(), state, copy_now)
            head = self.queue.add(draft.step, tier)
            self.saves[self.queue.attempts[-1].number] = save
            if head is not None:
                self._submit(head)
            else:
                self._hurry()
            timing.call = timing.elapsed()
            self.lock.notify_all()
            return save

    def settle(self, status: StatusCounts) -> SettleResult:
        """Do what follows from the status of the save under way: the sum of all ranks', or what this rank has learned.

        In the end every rank must have settled each save alike; where ranks sum their statuses, all call it at once.
        """
        with self.lock:
            self.handle_reports()
            self._note_staging_times()
            settled = self.queue.settle(status)
            if settled.superseded:
                self._supersede(self.errors.get(self.queue.attempts[0].name, "another run of the job took it over"))
            elif settled.committed is not None:
                self._handle_commit(settled.committed, status)
            elif settled.moved is not None and settled.start is not None:
                error = self._forget_failed(settled.moved)
                self.observer.on_moved_to_tier(settled.moved, error, settled.start)
            elif settled.abandoned is not None:
                self.give_up(settled.abandoned, self._forget_failed(settled.abandoned))
            if settled.start is not None:
                self._submit(settled.start)
            if settled != SettleResult():
                self.lock.notify_all()
            return settled

    def give_up(self, attempt: WriteAttempt, error: str) -> None:
        """The save of an attempt that is no more in the queue has failed."""
        outcome = self._finish(attempt, error=error)
        self.observer.on_failed(outcome, self.queue.failures, self.newest)

    def note_commit(self, ref: CommitRef) -> None:
        if self.newest is None or ref.step > self.newest.step:
            self.newest = ref

    def handle_reports(self) -> None:
        """Take in what the writer process has reported. Never blocks."""
        for report in self.engine.writer.take_reports():
            match report:
                case Committed():
                    self.commits[report.attempt] = report.commit
                case SaveFailed():
                    self.errors.setdefault(report.attempt, report.error)
                case PostCommitTaskDone():
                    self.pending.mark_done(report)
                case _:
                    self.observer.report(report)

    def wait_until_left(self, most_under_way: int, timeout_seconds: float | None = None) -> bool:
        """Wait until at most so many saves are under way, each of which has its deadline; whether that came in time."""
        with self.hurry_while_waiting():
            return self.agreement.wait_until_left(most_under_way, timeout_seconds)

    @contextlib.contextmanager
    def hurry_while_waiting(self) -> Iterator[None]:
        """Somebody waits for what is under way meanwhile: it is not held to its pace."""
        with self.lock:
            self._waiting += 1
            self._hurry()
            self.lock.notify_all()
        try:
            yield
        finally:
            with self.lock:
                self._waiting -= 1

    @property
    def is_awaited(self) -> bool:
        return self._waiting > 0

    def request_left_out_work(self, busy: BusyTiers = IDLE) -> None:
        """Have done what was left out for the newest commit, where no rank is busy any more."""
        if self._left_out is None:
            return
        attempt, ref, left = self._left_out
        free = left - busy
        if free != IDLE:
            self._request_post_commit(attempt, ref, free.complement(len(self.tiers)))
            self._left_out = (attempt, ref, left - free) if left != free else None

    def close(self, deadline_seconds: float) -> None:
        """End the writer process, which gets so long for what it does between saves."""
        self.engine.close(deadline_seconds)
        with self.lock:
            self.handle_reports()

    def _submit(self, attempt: WriteAttempt) -> None:
        self.agreement.on_submit()
        self.engine.submit(attempt, self.saves[attempt.number].draft, self.deadline_seconds)
        if self._waiting or len(self.queue.steps) > 1:
            self.engine.writer.hurry(attempt.name)

    def _hurry(self) -> None:
        """Somebody, or the next save, waits for the one under way."""
        if (head := self.queue.under_way) is not None:
            self.engine.writer.hurry(head.name)

    def _handle_commit(self, attempt: WriteAttempt, status: StatusCounts) -> None:
        save, commit = self.saves[attempt.number], self.commits.get(attempt.name)
        ref = save.draft.ref
        self.engine.forget(attempt)
        self._finish(attempt, commit=commit)
        self.observer.on_committed(attempt, save, commit)
        self.note_commit(ref)
        busy = (BusyTiers.from_sums(status) if save.busy is None else save.busy).part_for_commit_on(attempt.tier)
        self._request_post_commit(attempt, ref, busy)
        self._left_out = (attempt, ref, busy) if busy != IDLE else None

    def _forget_failed(self, attempt: WriteAttempt) -> str:
        """Why."""
        self.engine.forget(attempt)
        error = self.agreement.failure_reason(attempt, self.errors.pop(attempt.name, None))
        self.commits.pop(attempt.name, None)
        return error

    def _supersede(self, error: str) -> None:
        """Nothing that this session saves counts any more."""
        self.superseded = error
        for attempt in self.queue.attempts:
            self.engine.forget(attempt)
            self._finish(attempt, error=error)
        self.queue = SaveQueue(len(self.tiers), self.session)

    def _finish(self, attempt: WriteAttempt, *, error: str | None = None, commit: Commit | None = None) -> SaveOutcome:
        """The save of the attempt is over."""
        self.errors.pop(attempt.name, None)
        self.commits.pop(attempt.name, None)
        save = self.saves.pop(attempt.number)
        outcome = SaveOutcome(attempt, error, commit, save.certain)
        self.recent.append((attempt.number, error))
        save.outcome.set_result(outcome)
        return outcome

    def _request_post_commit(self, attempt: WriteAttempt, ref: CommitRef, busy: BusyTiers) -> None:
        """Have this rank's part of the work after a commit done, but for what the gang is too busy for."""
        request = post_commit_request(
            ref, attempt.tier, self.tiers, self.rank, self.hosts, attempt.number, self.verify, busy
        )
        self.pending.add(request)
        self.engine.writer.request_post_commit(request)

    def _note_staging_times(self) -> None:
        """Before a save is settled, which drops its copy."""
        for save in self.saves.values():
            timing, at = save.timing, save.copy.copied_at if save.copy is not None else None
            if at is not None and timing.staged is None:
                timing.staged, timing.joined = at - timing.began, self.engine.waited_seconds - timing.waited
