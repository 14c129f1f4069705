"""Ranks that exchange nothing between saves: each settles its own, and all agree when they save next.

A thread follows the writer process of each rank. A rank that does not commit learns what became of its part from the
store, which may hang: look-ups run in threads of their own, and nothing here waits for them longer than the save's
deadline. Should two ranks have learned different things, `align` has them agree.
"""

import functools
import logging
import operator
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from convoy.checkpoint.format import Commit
from convoy.checkpoint.messages import Copied, PartVerified, Pruned, Report
from convoy.checkpoint.save.commit_lookup import CommitLookup, LookupResult
from convoy.checkpoint.save.driver import Save, SaveDriver, SaveOutcome
from convoy.checkpoint.save.post_commit import BusyTiers
from convoy.checkpoint.save.queue import MOST, StatusCounts, WriteAttempt
from convoy.checkpoint.save.writer_client import GRACE_SECONDS
from convoy.config.errors import one_line
from convoy.job.lineage import CommitRef
from convoy.storage import Store

IDLE_SECONDS = 2.0
WRITING_SECONDS = 0.1
AWAITED_SECONDS = 0.003
"""Between two looks at the writer process: with nothing under way, with a save, and while someone waits for it."""

LOOKUP_SECONDS = (0.02, 0.5)
"""First and longest pause between two look-ups in the store, by a rank that does not commit."""

NO_COMMIT = -1
"""Stands for the step of the newest commit where there is none: the first save may be of step 0."""

ALERT_AFTER = 3
"""So many failed saves in a row are logged as an error."""

log = logging.getLogger("convoy.checkpoint")


@dataclass(frozen=True)
class RankSaves:
    """A rank's report on its saves to the others.

    By the time that a save begins a rank's own queue may know more than it has reported: what all ranks must do alike
    follows from the reports alone.
    """

    under_way: dict[int, int] = field(default_factory=dict)
    """Tiers that each has failed on, by number: how far it has moved on from the one that it began on."""
    steps: dict[int, int] = field(default_factory=dict)
    """Their steps, by number."""
    settled: dict[int, str | None] = field(default_factory=dict)
    """The newest ones by number, with the error; None: committed."""
    newest: int = NO_COMMIT
    """Step of the newest commit that was made here; NO_COMMIT: there is none."""
    next_tier: int = 0
    """Tier that the next save should begin on."""
    busy: BusyTiers = field(default_factory=BusyTiers)
    """Work between saves that this rank has not finished."""
    superseded: str | None = None


@dataclass(frozen=True)
class OutstandingSaves:
    """The conclusions from the reports of all ranks."""

    steps: frozenset[int] = frozenset()
    """Steps of the saves that no rank has settled."""
    newest: int = NO_COMMIT
    """Step of the newest commit that any rank knows to have been made here; NO_COMMIT: there is none."""
    next_tier: int = 0
    """Tier that the next save begins on: not the first one while any rank knows that it takes nothing."""
    busy: BusyTiers = field(default_factory=BusyTiers)
    """Work that some rank still does for earlier commits, and so no rank for the next one."""
    superseded: str | None = None
    """Why no save of this session counts any more."""

    @property
    def has_free_slot(self) -> bool:
        """Whether every rank has a free buffer, once it has settled what another one has."""
        return len(self.steps) < MOST


def combine_reports(reports: Sequence[RankSaves]) -> OutstandingSaves:
    settled = {number for report in reports for number in report.settled}
    steps = {step for report in reports for number, step in report.steps.items() if number not in settled}
    return OutstandingSaves(
        steps=frozenset(steps),
        newest=max(report.newest for report in reports),
        next_tier=max(report.next_tier for report in reports),
        busy=functools.reduce(operator.or_, (report.busy for report in reports)),
        superseded=next((report.superseded for report in reports if report.superseded), None),
    )


class CommitDeadline:
    """How long one rank waits for the coordinator's commit before it gives an attempt up by its own clock.

    The coordinator settles an attempt within a known time of its own beginning, but it may begin later than this rank:
    a rank whose part fails moves to the next tier at once, and the coordinator, where it cannot hear of that, only at
    its deadline. A rank that gave up before the coordinator must have would report a failure, and the coordinator
    commit. Reads no clock: times are of one clock, in seconds, and come in order.
    """

    def __init__(self, longest_seconds: float, slack_seconds: float) -> None:
        """longest: from the coordinator's beginning of an attempt to its end. slack: between the moments at which two
        ranks hear of the same event."""
        self._longest = longest_seconds
        self._slack = slack_seconds
        self._abreast = 0.0  # by then the coordinator has settled all that this rank has
        self._over = 0.0  # by then it has settled what is under way here
        self._has_unreported = False

    def note_begun(self, now: float) -> None:
        """This rank has begun an attempt."""
        self._over = max(now, self._abreast) + self._longest

    def note_settled(self, now: float, *, unreported: bool) -> None:
        """It has settled the attempt. unreported: the coordinator may not know why yet."""
        self._abreast = self._over if unreported else now
        self._has_unreported = self._has_unreported or unreported

    def note_reporting(self) -> None:
        """It is about to report to the gang all that it has settled."""
        self._has_unreported = False

    def note_aligned(self, now: float) -> None:
        """The gang has drawn its conclusions from what each rank reported."""
        if not self._has_unreported:  # else it has settled something since it reported
            self._abreast = now
            self._over = min(self._over, now + self._longest)

    def is_over(self, now: float) -> bool:
        """Whether the coordinator must have settled by now what is under way here."""
        return now > self._over + self._slack


class SaveLogger:
    """Reports saves to Python's log."""

    def on_committed(self, attempt: WriteAttempt, save: Save, commit: Commit | None) -> None:
        pass

    def on_moved_to_tier(self, attempt: WriteAttempt, error: str, retried: WriteAttempt) -> None:
        log.warning("step %d: %s; it is written to the next tier", attempt.step, error)

    def on_failed(self, outcome: SaveOutcome, failures: int, newest: CommitRef | None) -> None:
        level = logging.ERROR if failures >= ALERT_AFTER else logging.WARNING
        log.log(level, "%s (%d in a row): %s", outcome.failure_text, failures, outcome.error)

    def report(self, report: Report) -> None:
        match report:
            case PartVerified() if report.error is not None:
                log.log(logging.ERROR if report.damaged else logging.WARNING, "read back: %s", report.error)
            case Copied() if report.error is not None:
                log.warning("step %d was not copied to %s: %s", report.ref.step, report.to, report.error)
            case Pruned() if report.error is not None:
                log.warning("pruning %s: %s", report.tier, report.error)


class NextSaveAgreement:
    """Settles the saves of a driver by what its writer process, the store and the clock say, until the next save."""

    def __init__(self, stores: Sequence[Store], deadline_seconds: float, *, commits: bool) -> None:
        """stores: the job's tiers. deadline_seconds: of a save, on each. commits: this rank is the coordinator."""
        self._commits = commits
        self._lookup = CommitLookup(stores, self._wake)
        self._next_lookup = 0.0
        self._pause = LOOKUP_SECONDS[0]
        self._deadline = CommitDeadline(deadline_seconds + GRACE_SECONDS, GRACE_SECONDS)
        self._closing = False
        self._driver: SaveDriver
        self._thread: threading.Thread

    def start(self, driver: SaveDriver) -> None:
        """Start the engine, and the thread that follows its writer process."""
        self._driver = driver
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._follow_writer, args=(started,), name="saves", daemon=True)
        self._thread.start()
        started.result()  # what is submitted before there is a writer process would be lost

    def report_saves(self) -> RankSaves:
        driver = self._driver
        with driver.lock:
            self._fail_saves_on_error(self._settle_by_reports)
            self._deadline.note_reporting()
            attempts = driver.queue.attempts
            return RankSaves(
                under_way={attempt.number: attempt.tried for attempt in attempts},
                steps={attempt.number: attempt.step for attempt in attempts},
                settled=dict(driver.recent),
                newest=driver.newest.step if driver.newest else NO_COMMIT,
                next_tier=driver.queue.next_tier,
                busy=driver.engine.writer.busy(),
                superseded=driver.superseded,
            )

    def align(self, reports: Sequence[RankSaves]) -> OutstandingSaves:
        """Draw the same conclusions as all others who have the same reports."""
        driver = self._driver
        with driver.lock:
            for attempt in driver.queue.attempts:
                errors = [report.settled[attempt.number] for report in reports if attempt.number in report.settled]
                if None in errors:
                    self._settle(StatusCounts(committed=1))
                elif errors:
                    self._fail_attempts(attempt.number, str(errors[0]))
                else:
                    furthest = max(report.under_way.get(attempt.number, 0) for report in reports)
                    self._fail_attempts(attempt.number, "another rank could not write it", tried=furthest)
            conclusions = combine_reports(reports)
            driver.superseded = conclusions.superseded or driver.superseded
            self._deadline.note_aligned(time.monotonic())
            return conclusions

    def on_submit(self) -> None:
        self._deadline.note_begun(time.monotonic())

    def failure_reason(self, attempt: WriteAttempt, own_error: str | None) -> str:
        return own_error or "its part was not written"

    def wait_until_left(self, most_under_way: int, timeout_seconds: float | None = None) -> bool:
        driver = self._driver
        with driver.lock:
            return driver.lock.wait_for(lambda: len(driver.queue.steps) <= most_under_way, timeout_seconds)

    def close(self, deadline_seconds: float) -> None:
        """Stop following, and end the writer process, which gets so long for its work between saves; what is not done
        by then is logged as a warning. A save that is still under way is given up.

        What was left out for the newest commit is requested now, on every rank: no commit follows it.
        """
        driver = self._driver
        with driver.lock:
            if not driver.queue.steps:
                driver.request_left_out_work()
            self._closing = True
            driver.lock.notify_all()
        self._thread.join(GRACE_SECONDS)
        with driver.lock:
            seconds = 0.0 if driver.queue.steps else deadline_seconds
        driver.close(seconds)
        with driver.lock:
            self._give_up_all("the store was closed before it was settled")
        for line in driver.pending.descriptions:
            log.warning("%s: the store was closed after %.0f s", line, seconds)

    def _follow_writer(self, started: "Future[None]") -> None:
        driver = self._driver
        try:
            driver.engine.writer.start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(None)
        with driver.lock:
            while not self._closing:
                self._fail_saves_on_error(self._poll)
                driver.lock.wait(self._poll_seconds())

    def _wake(self) -> None:
        with self._driver.lock:
            self._driver.lock.notify_all()

    def _poll_seconds(self) -> float:
        if not self._driver.queue.steps:
            return IDLE_SECONDS
        return AWAITED_SECONDS if self._driver.is_awaited else WRITING_SECONDS

    def _fail_saves_on_error(self, work: Callable[[], None]) -> None:
        """An error of ours fails the saves under way, which somebody may wait for, and not those that follow."""
        try:
            work()
        except Exception as error:
            log.exception("following the saves of steps %s", self._driver.queue.steps)
            self._give_up_all(f"{type(error).__name__}: {one_line(error)}")

    def _poll(self) -> None:
        """Hear the writer process, the store and the clock. Never blocks."""
        self._settle_by_reports()
        head = self._driver.queue.under_way
        if head is not None and not self._commits and self._driver.engine.awaits_coordinator(head):
            self._act_on_lookup(head, self._lookup.take_result(head.tier, head.name))

    def _settle_by_reports(self) -> None:
        """Hear the writer process."""
        driver, before = self._driver, None
        while (head := driver.queue.under_way) is not None and head != before:
            before = head
            status = driver.engine.status(head)
            driver.handle_reports()
            if status != StatusCounts():
                self._settle(status, unreported=not self._commits)
        driver.handle_reports()

    def _settle(self, status: StatusCounts, *, unreported: bool = False) -> None:
        """unreported: the coordinator may not know of it yet."""
        self._next_lookup, self._pause = 0.0, LOOKUP_SECONDS[0]
        self._deadline.note_settled(time.monotonic(), unreported=unreported)
        self._driver.settle(status)

    def _fail_attempts(self, number: int, error: str, tried: int | None = None) -> None:
        """Fail the attempts of a save until it has moved past so many tiers; None: until it is given up."""
        queue = self._driver.queue
        while (head := queue.under_way) is not None and head.number == number and (tried is None or head.tried < tried):
            self._driver.errors[head.name] = error
            self._settle(StatusCounts(failed=1))

    def _give_up_all(self, error: str) -> None:
        """Give up all saves, whatever state they are in."""
        driver = self._driver
        while (head := driver.queue.under_way) is not None:
            driver.saves[head.number].certain = False
            driver.engine.forget(head)
            settled = driver.queue.settle(StatusCounts(failed=1))
            self._deadline.note_settled(time.monotonic(), unreported=True)
            self._deadline.note_begun(time.monotonic())
            if settled.abandoned is not None:
                driver.give_up(head, error)
        driver.lock.notify_all()

    def _act_on_lookup(self, head: WriteAttempt, result: LookupResult) -> None:
        """Take what the store says of the attempt under way, if anything; else look it up again."""
        driver, now = self._driver, time.monotonic()
        save = driver.saves[head.number]
        if isinstance(result, Commit):
            driver.commits[head.name] = result
            self._settle(StatusCounts(committed=1))
        elif result is not None:
            driver.errors[head.name] = result
            # Of another writer's failure the coordinator may hear later, if the store hangs for it.
            self._settle(StatusCounts(failed=1), unreported=not result.startswith("writer 0: "))
        elif self._deadline.is_over(now):
            driver.errors[head.name] = "nothing was heard of its commit"
            save.certain = False
            self._settle(StatusCounts(failed=1))
        elif now >= self._next_lookup and self._lookup.begin(head.tier, save.draft.ref, head.name):
            self._next_lookup = now + self._pause
            self._pause = min(LOOKUP_SECONDS[1], 1.5 * self._pause)
