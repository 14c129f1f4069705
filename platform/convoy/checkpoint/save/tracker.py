"""The saves of an opened store on one rank: a thread takes each from the staged state to its commit, or its failure.

No rank waits for another here. A rank that does not commit learns what became of its part from the store, which may
hang: it is asked in threads of their own, and nothing here waits for them longer than the save's deadline. Should two
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

from convoy.checkpoint.errors import one_line
from convoy.checkpoint.format import Commit
from convoy.checkpoint.messages import (
    AfterCommit,
    ChoreDone,
    Committed,
    Copied,
    PartVerified,
    Pruned,
    Report,
    SaveFailed,
)
from convoy.checkpoint.save.agreement import Agreed, View, agreed
from convoy.checkpoint.save.commit_deadline import Patience
from convoy.checkpoint.save.commit_lookup import Found, Looks
from convoy.checkpoint.save.engine import Engine
from convoy.checkpoint.save.post_commit import Busy
from convoy.checkpoint.save.post_commit_pending import Asked
from convoy.checkpoint.save.queue import Attempt, SaveQueue, SaveStatus, Settled
from convoy.checkpoint.save.writer_client import GRACE_SECONDS
from convoy.job.lineage import CommitRef
from convoy.storage import Store

IDLE_SECONDS = 2.0
WRITING_SECONDS = 0.1
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
    certain: bool = True
    """False: this rank has not heard what became of it, and the coordinator may have committed it."""

    @property
    def failure(self) -> str:
        """Where there is an error, for people."""
        return f"step {self.attempt.step} {'was not' if self.certain else 'may not be'} saved"


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
        self._looks = Looks(stores, self._wake)
        self._next_look = 0.0
        self._pause = LOOK_SECONDS[0]
        self._patience = Patience(deadline_seconds + GRACE_SECONDS, GRACE_SECONDS)
        self._unheard: set[int] = set()
        """Saves with an attempt that was given up by this rank's own clock."""
        self._asked = Asked()
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
            self._guarded(self._follow)
            self._patience.tells()
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
                    self._settle(SaveStatus(committed=1))
                elif told:
                    self._give_up(attempt.number, str(told[0]))
                else:
                    furthest = max(view.under_way.get(attempt.number, 0) for view in views)
                    self._move(attempt.number, furthest)
            conclusions = agreed(views)
            self._newly_agreed = conclusions
            self._superseded = conclusions.superseded or self._superseded
            self._patience.aligned(time.monotonic())
            return conclusions

    def add(self, step: int, draft: Commit, stage: Callable[[int], None]) -> "Future[Outcome]":
        """Stage into a free slot and begin, or wait for the save under way. Raises ValueError if there is none."""
        with self._changed:
            outcome: Future[Outcome] = Future()
            slot = self._queue.free_slot()
            try:
                stage(slot)
            except Exception:  # of one rank: the others count this save too
                log.exception("step %d could not be staged, and will fail", step)
            if self._superseded is not None:  # since this rank told the others what it knew
                outcome.set_result(Outcome(Attempt(step, 0, 0, ""), error=self._superseded))
                return outcome
            begun = self._queue.add(step, self._newly_agreed.first_tier)
            number = self._queue.attempts[-1].number
            self._drafts[number], self._agreed[number] = draft, self._newly_agreed
            self._under_way[number] = outcome
            if begun is not None:
                self._submit(begun)
            else:
                self._hurry()
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

    def close(self, chores_seconds: float) -> None:
        """Stop following, and end the writer process, which is given so long for what it does between saves; what it
        has not done by then is told as a warning. A save that is still under way is given up.

        What was left out for the newest commit is asked for now, on every rank: there is none after it.
        """
        with self._changed:
            if self._left_out is not None and not self._queue.steps:
                self._ask(self._left_out)
            self._closing = True
            self._changed.notify_all()
        self._thread.join(GRACE_SECONDS)
        with self._changed:
            seconds = 0.0 if self._queue.steps else chores_seconds
        self._engine.close(seconds)
        with self._changed:
            self._hear(self._engine.reports())
            self._fail_all("the store was closed before it was settled")
        for left in self._asked.left:
            log.warning("%s: the store was closed after %.0f s", left, seconds)

    @contextlib.contextmanager
    def _awaited(self) -> Iterator[None]:
        """Look more often while someone waits."""
        with self._changed:
            self._waiting += 1
            self._hurry()
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
        with self._changed:
            while not self._closing:
                self._guarded(self._round)
                self._changed.wait(self._seconds())

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _guarded(self, work: Callable[[], None]) -> None:
        """An error of ours fails the saves under way, which somebody may wait for, and not those that follow."""
        try:
            work()
        except Exception as error:
            log.exception("following the saves of steps %s", self._queue.steps)
            self._fail_all(f"{type(error).__name__}: {one_line(error)}")

    def _round(self) -> None:
        """Hear the writer process, the store and the clock. Never blocks."""
        self._follow()
        head = self._queue.under_way
        if head is not None and not self._commits and self._engine.written(head):
            self._take(head, self._looks.answer(head.tier, head.name))

    def _seconds(self) -> float:
        if not self._queue.steps:
            return IDLE_SECONDS
        return AWAITED_SECONDS if self._waiting else WRITING_SECONDS

    def _follow(self) -> None:
        """Hear the writer process."""
        before = None
        while (head := self._queue.under_way) is not None and head != before:
            before = head
            status = self._engine.status(head)
            self._hear(self._engine.reports())
            if status != SaveStatus():
                self._settle(status, alone=not self._commits)
        self._hear(self._engine.reports())

    def _hear(self, reports: Iterable[Report]) -> None:
        for report in reports:
            match report:
                case Committed():
                    self._known[report.attempt] = report.commit
                case SaveFailed():
                    self._errors[report.attempt] = report.error
                case ChoreDone():
                    self._asked.done(report)
                case PartVerified() if report.error is not None:
                    log.log(logging.ERROR if report.damaged else logging.WARNING, "read back: %s", report.error)
                case Copied() if report.error is not None:
                    log.warning("step %d was not copied to %s: %s", report.ref.step, report.to, report.error)
                case Pruned() if report.error is not None:
                    log.warning("pruning %s: %s", report.tier, report.error)

    def _settle(self, status: SaveStatus, *, alone: bool = False) -> None:
        """alone: the coordinator may not know of it yet."""
        self._next_look, self._pause = 0.0, LOOK_SECONDS[0]
        self._patience.settled(time.monotonic(), alone=alone)
        settled = self._queue.settle(status)
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
        self._record(Outcome(attempt, commit=self._known.pop(attempt.name, None)))
        draft, busy = self._drafts.pop(attempt.number), self._agreed.pop(attempt.number).busy.at(attempt.tier)
        self.newest = max(self.newest, attempt.step)
        self._ask(self._chores(attempt, draft.ref, busy))
        rest = busy.turned(len(self._stores))
        self._left_out = self._chores(attempt, draft.ref, rest) if busy != Busy() else None

    def _ask(self, chores: AfterCommit) -> None:
        self._asked.ask(chores)
        self._engine.after_commit(chores)

    def _failed(self, attempt: Attempt, error: str) -> None:
        self._drafts.pop(attempt.number, None)
        self._agreed.pop(attempt.number, None)
        outcome = Outcome(attempt, error=error, certain=attempt.number not in self._unheard)
        self._record(outcome)
        level = logging.ERROR if self._queue.failures >= ALERT_AFTER else logging.WARNING
        log.log(level, "%s (%d in a row): %s", outcome.failure, self._queue.failures, error)

    def _end(self, error: str) -> None:
        self._superseded = error
        for attempt in self._queue.attempts:
            self._engine.forget(attempt)
            self._record(Outcome(attempt, error=error))
        self._queue = SaveQueue(len(self._stores), "")
        self._changed.notify_all()

    def _fail_all(self, error: str) -> None:
        """Whatever state they are in."""
        while (head := self._queue.under_way) is not None:
            self._unheard.add(head.number)
            self._engine.forget(head)
            settled = self._queue.settle(SaveStatus(failed=1))
            self._patience.settled(time.monotonic(), alone=True)
            self._patience.begun(time.monotonic())
            if settled.given_up is not None:
                self._failed(head, error)
        self._changed.notify_all()

    def _record(self, outcome: Outcome) -> None:
        number = outcome.attempt.number
        self._unheard.discard(number)
        begun = self._under_way.pop(number, None)
        if begun is not None:
            self._settled.append((number, outcome.error))
            begun.set_result(outcome)

    def _submit(self, attempt: Attempt) -> None:
        self._patience.begun(time.monotonic())
        self._engine.submit(attempt, self._drafts[attempt.number], self._deadline)
        if self._waiting or len(self._queue.steps) > 1:
            self._engine.hurry(attempt)

    def _hurry(self) -> None:
        """Somebody, or the next save, waits for the one under way."""
        if (head := self._queue.under_way) is not None:
            self._engine.hurry(head)

    def _give_up(self, number: int, error: str) -> None:
        while (head := self._queue.under_way) is not None and head.number == number:
            self._errors[head.name] = error
            self._settle(SaveStatus(failed=1))

    def _move(self, number: int, tried: int) -> None:
        while (head := self._queue.under_way) is not None and head.number == number and head.tried < tried:
            self._errors[head.name] = "another rank could not write it"
            self._settle(SaveStatus(failed=1))

    def _take(self, head: Attempt, found: Found) -> None:
        """What the store has told of the attempt under way, if anything; then it is asked again."""
        now = time.monotonic()
        if isinstance(found, Commit):
            self._known[head.name] = found
            self._settle(SaveStatus(committed=1))
        elif found is not None:
            self._errors[head.name] = found
            # Of another writer's word the coordinator may hear later, if the store hangs for it.
            self._settle(SaveStatus(failed=1), alone=not found.startswith("writer 0: "))
        elif self._patience.ended(now):
            self._errors[head.name] = "nothing was heard of its commit"
            self._unheard.add(head.number)
            self._settle(SaveStatus(failed=1))
        elif now >= self._next_look and self._looks.ask(head.tier, self._drafts[head.number].ref, head.name):
            self._next_look = now + self._pause
            self._pause = min(LOOK_SECONDS[1], 1.5 * self._pause)
