"""The saves of an opened store on one rank: a thread takes each from the staged state to its commit, or its failure.

No rank waits for another here. A rank that does not commit learns what became of its part from the store; should two
ranks have learned different things, `align` has them agree when the gang saves next.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from convoy.checkpoint.chores import Busy
from convoy.checkpoint.commits import CommitGoneError, read_commit
from convoy.checkpoint.engine import Engine
from convoy.checkpoint.format import Commit, DamagedCommitError, failed_name, shards_prefix
from convoy.checkpoint.link import GRACE_SECONDS
from convoy.checkpoint.messages import AfterCommit, Committed, Copied, PartVerified, Pruned, Report, SaveFailed
from convoy.checkpoint.queue import Attempt, SaveQueue, Settled, Standing
from convoy.checkpoint.views import Agreed, View, agreed
from convoy.job.lineage import CommitRef
from convoy.storage import ObjectMissing, Store, StoreUnavailable

IDLE_SECONDS = 2.0
WRITING_SECONDS = 0.02
AWAITED_SECONDS = 0.003
"""Between two looks at the writer process: with nothing under way, with a save, and with someone who waits for it."""

LOOK_SECONDS = (0.02, 0.5)
"""First and longest pause between two looks at the store, by a rank that does not commit itself."""

ALERT_AFTER = 3
"""So many saves in a row without a commit are logged as an error."""

_REMEMBERED = 8

log = logging.getLogger("convoy.checkpoint")


@dataclass(frozen=True)
class Outcome:
    """What became of a save."""

    attempt: Attempt
    error: str | None = None
    """Why there is no commit; None: there is."""
    commit: Commit | None = None
    """Where this rank knows it already."""


class Saves:
    """Thread-safe, but for the engine's plan and its hook, which are the caller's."""

    def __init__(
        self,
        engine: Engine,
        stores: Sequence[Store],
        session: str,
        *,
        deadline_seconds: float,
        commits: bool,
        chores: Callable[[Attempt, CommitRef, Busy], AfterCommit],
    ) -> None:
        """session: random, and the same on every rank. commits: this rank is the coordinator.

        chores: to be done after a commit, given what the gang was busy with when its save began.
        """
        self._engine = engine
        self._stores = stores
        self._deadline = deadline_seconds
        self._commits = commits
        self._chores = chores
        self._changed = threading.Condition(threading.RLock())
        self._queue = SaveQueue(len(stores), session)
        self._drafts: dict[int, Commit] = {}
        self._agreed: dict[int, Agreed] = {}
        self._under_way: dict[int, Future[Outcome]] = {}
        self._settled: deque[tuple[int, str | None]] = deque(maxlen=_REMEMBERED)
        self._errors: dict[str, str] = {}
        self._known: dict[str, Commit] = {}
        self._next_look: float | None = None
        self._pause = LOOK_SECONDS[0]
        self._gave_up_at = 0.0
        self._superseded: str | None = None
        """Why no save of this session counts any more."""
        self._newly_agreed = Agreed()  # of the next save
        self._left_out: AfterCommit | None = None  # of the newest commit, for the gang was busy
        self._waiting = 0
        self._closing = False
        self.newest = 0
        """Step of the newest commit that was made here."""
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="saves", daemon=True)
        self._thread.start()
        started.result()  # what is submitted before there is a writer process would be lost

    @property
    def steps(self) -> list[int]:
        with self._changed:
            return self._queue.steps

    def view(self) -> View:
        with self._changed:
            self._follow()
            attempts = self._queue.attempts
            return View(
                under_way={attempt.number: attempt.tried for attempt in attempts},
                steps={attempt.number: attempt.step for attempt in attempts},
                settled=dict(self._settled),
                newest=self.newest,
                first_tier=self._queue.first_tier,
                busy=self._engine.busy(),
                superseded=self._superseded,
            )

    def align(self, views: Sequence[View]) -> Agreed:
        """Draw the same conclusions as all others who are given the same views."""
        with self._changed:
            settled = [view.settled for view in views]
            for attempt in self._queue.attempts:
                told = [errors[attempt.number] for errors in settled if attempt.number in errors]
                if None in told:
                    self._settle(Standing(committed=1))
                elif told:
                    self._give_up(attempt.number, str(told[0]))
                else:
                    furthest = max(view.under_way.get(attempt.number, 0) for view in views)
                    self._move(attempt.number, furthest)
            conclusions = agreed(views)
            self._newly_agreed = conclusions
            self._superseded = conclusions.superseded or self._superseded
            return conclusions

    def add(self, step: int, draft: Commit, stage: Callable[[int], None]) -> "Future[Outcome]":
        """Stage into a free slot and begin, or wait for the save under way. Raises ValueError if there is none."""
        with self._changed:
            outcome: Future[Outcome] = Future()
            stage(self._queue.free_slot())
            if self._superseded is not None:  # since this rank told the others what it knew
                outcome.set_result(Outcome(Attempt(step, 0, 0, ""), error=self._superseded))
                return outcome
            begun = self._queue.add(step, self._newly_agreed.first_tier)
            number = self._queue.attempts[-1].number
            self._drafts[number], self._agreed[number] = draft, self._newly_agreed
            self._under_way[number] = outcome
            if begun is not None:
                self._submit(begun)
            self._changed.notify_all()
            return outcome

    def wait(self, outcome: "Future[Outcome]", timeout_seconds: float | None = None) -> Outcome:
        """What became of a save. Raises TimeoutError."""
        with self._awaited():
            return outcome.result(timeout_seconds)

    def settle_all(self, timeout_seconds: float | None = None) -> bool:
        """Wait until no save is under way; whether that came in time."""
        with self._awaited(), self._changed:
            return self._changed.wait_for(lambda: not self._queue.steps, timeout_seconds)

    def wait_for_room(self) -> None:
        """Return when another save may be added; each one under way has its deadline."""
        with self._awaited(), self._changed:
            self._changed.wait_for(lambda: self._queue.may_add())

    @property
    def lock(self) -> threading.Condition:
        """Held while the engine is used."""
        return self._changed

    def close(self) -> None:
        """Stop following; what is under way is left to the writer process.

        What was left out for the newest commit is asked for now, on every rank: there is none after it.
        """
        with self._changed:
            if self._left_out is not None and not self._queue.steps:
                self._engine.after_commit(self._left_out)
            self._closing = True
            self._changed.notify_all()
        self._thread.join(GRACE_SECONDS)

    @contextlib.contextmanager
    def _awaited(self) -> Iterator[None]:
        """Look more often while someone waits."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1

    def _run(self, started: "Future[None]") -> None:
        try:
            self._engine.start()  # by a thread that lives as long: the process ends with the thread that started it
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(None)
        while True:
            with self._changed:
                if self._closing:
                    return
                self._follow()
                head = self._queue.under_way
                looks = head is not None and not self._commits and self._engine.written(head)
                due = looks and time.monotonic() >= (self._next_look or 0)
                if not due:
                    self._changed.wait(self._seconds())
                    continue
            assert head is not None
            found = self._look(head)  # outside the lock: the store may take its time
            with self._changed:
                self._take(head, found)

    def _seconds(self) -> float:
        if not self._queue.steps:
            return IDLE_SECONDS
        return AWAITED_SECONDS if self._waiting else WRITING_SECONDS

    def _follow(self) -> None:
        """Hear the writer process."""
        before = None
        while (head := self._queue.under_way) is not None and head != before:
            before = head
            standing = self._engine.standing(head)
            self._hear(self._engine.reports())
            if standing != Standing():
                self._settle(standing)
        self._hear(self._engine.reports())

    def _hear(self, reports: Iterable[Report]) -> None:
        for report in reports:
            match report:
                case Committed():
                    self._known[report.attempt] = report.commit
                case SaveFailed():
                    self._errors[report.attempt] = report.error
                case PartVerified() if report.error is not None:
                    log.log(logging.ERROR if report.damaged else logging.WARNING, "read back: %s", report.error)
                case Copied() if report.error is not None:
                    log.warning("step %d was not copied to %s: %s", report.ref.step, report.to, report.error)
                case Pruned() if report.error is not None:
                    log.warning("pruning %s: %s", report.tier, report.error)

    def _settle(self, standing: Standing) -> None:
        self._next_look, self._pause = None, LOOK_SECONDS[0]
        settled = self._queue.settle(standing)
        head = settled.committed or settled.moved or settled.given_up
        error = self._errors.pop(head.name, "its part was not written") if head else None
        if settled.superseded:
            self._end(self._errors.get(self._queue.attempts[0].name, "another run of the job took it over"))
        elif settled.committed is not None:
            self._committed(settled.committed)
        elif settled.given_up is not None:
            self._failed(settled.given_up, str(error))
        elif settled.moved is not None:
            log.warning("step %d: %s; it is written to the next tier", settled.moved.step, error)
        if head is not None:
            self._engine.forget(head)
        self._begin(settled)

    def _begin(self, settled: Settled) -> None:
        if settled.start is not None:
            self._submit(settled.start)
        self._changed.notify_all()

    def _committed(self, attempt: Attempt) -> None:
        commit = self._known.pop(attempt.name, None)
        draft, busy = self._drafts.pop(attempt.number), self._agreed.pop(attempt.number).busy.at(attempt.tier)
        self._record(Outcome(attempt, commit=commit))
        self.newest = max(self.newest, attempt.step)
        self._engine.after_commit(self._chores(attempt, draft.ref, busy))
        rest = busy.turned(len(self._stores))
        self._left_out = self._chores(attempt, draft.ref, rest) if busy != Busy() else None

    def _failed(self, attempt: Attempt, error: str) -> None:
        self._drafts.pop(attempt.number, None)
        self._agreed.pop(attempt.number, None)
        self._record(Outcome(attempt, error=error))
        level = logging.ERROR if self._queue.failures >= ALERT_AFTER else logging.WARNING
        log.log(level, "step %d was not saved (%d in a row): %s", attempt.step, self._queue.failures, error)

    def _end(self, error: str) -> None:
        self._superseded = error
        for attempt in self._queue.attempts:
            self._engine.forget(attempt)
            self._record(Outcome(attempt, error=error))
        self._queue = SaveQueue(len(self._stores), "")
        self._changed.notify_all()

    def _record(self, outcome: Outcome) -> None:
        number = outcome.attempt.number
        self._settled.append((number, outcome.error))
        self._under_way.pop(number).set_result(outcome)

    def _submit(self, attempt: Attempt) -> None:
        self._gave_up_at = time.monotonic() + self._deadline + 2 * GRACE_SECONDS
        self._engine.submit(attempt, self._drafts[attempt.number], self._deadline)

    def _give_up(self, number: int, error: str) -> None:
        while (head := self._queue.under_way) is not None and head.number == number:
            self._errors[head.name] = error
            self._settle(Standing(failed=1))

    def _move(self, number: int, tried: int) -> None:
        while (head := self._queue.under_way) is not None and head.number == number and head.tried < tried:
            self._errors[head.name] = "another rank could not write it"
            self._settle(Standing(failed=1))

    def _look(self, attempt: Attempt) -> Commit | str | None:
        """The commit, or why there will be none, or None: not yet known."""
        store, draft = self._stores[attempt.tier], self._drafts[attempt.number]
        with contextlib.suppress(StoreUnavailable, DamagedCommitError):
            return find_commit(store, draft.ref, attempt.name)
        return None

    def _take(self, attempt: Attempt, found: Commit | str | None) -> None:
        if self._queue.under_way != attempt:
            return
        self._next_look = time.monotonic() + self._pause
        self._pause = min(LOOK_SECONDS[1], 1.5 * self._pause)
        if isinstance(found, Commit):
            self._known[attempt.name] = found
            self._settle(Standing(committed=1))
        elif found is not None or time.monotonic() > self._gave_up_at:
            self._errors[attempt.name] = found or "nothing was heard of its commit"
            self._settle(Standing(failed=1))


def find_commit(store: Store, ref: CommitRef, attempt: str) -> Commit | str | None:
    """The commit of a generation and step if it is there, or what a writer said when it gave the attempt up, or None.

    Raises StoreUnavailable, DamagedCommitError.
    """
    with contextlib.suppress(CommitGoneError):
        return read_commit(store, ref)
    failed = store.sizes(shards_prefix(ref.generation, ref.step, attempt) + failed_name(0)[:7])
    for name in failed:
        with contextlib.suppress(ObjectMissing):  # pruned meanwhile
            said = store.read(name).decode(errors="replace")
            with contextlib.suppress(CommitGoneError):  # made meanwhile; its coordinator may not have heard of that
                return read_commit(store, ref)
            return said
    return None
