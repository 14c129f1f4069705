"""What the event log says of saves: from what the writer processes report, and what the gang settled."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from convoy.checkpoint.format import Commit
from convoy.checkpoint.messages import Committed, Copied, PartVerified, Pruned, Report, SaveFailed
from convoy.checkpoint.save.queue import Attempt
from convoy.job.events.log import EventWriter
from convoy.job.events.types import (
    CheckpointAlert,
    CheckpointCopied,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointMisread,
    CheckpointSaved,
    CheckpointSkipped,
    CheckpointsPruned,
    CheckpointVerified,
)


@dataclass
class Timing:
    """Of one save on this rank, in seconds."""

    began: float
    """By `time.perf_counter`."""
    waited: float
    """What updates had waited for copies before this save, in all."""
    slot: int
    call: float = 0.0
    joined: float = 0.0
    """For which an update waited for the copy."""
    staged: float | None = None
    """From `began` until the copy was whole."""

    def since(self) -> float:
        return time.perf_counter() - self.began


class SaveLog:
    """Appends one rank's events. Of what concerns the whole gang, rank 0 alone speaks."""

    def __init__(self, events: EventWriter, tiers: Sequence[str], parts: int, first: bool, alert_after: int) -> None:
        """tiers: URIs of the job. parts: how many a commit has. alert_after: failures in a row."""
        self._events = events
        self._tiers = tiers
        self._parts = parts
        self._first = first
        self._alert_after = alert_after
        self._errors: dict[str, str] = {}
        self._commits: dict[str, Commit] = {}

    def take(self, reports: Sequence[Report]) -> None:
        """Append what is told between saves, and keep what is known of attempts until they settle."""
        for report in reports:
            match report:
                case SaveFailed():
                    self._errors.setdefault(report.attempt, report.error)
                case Committed():
                    self._commits[report.attempt] = report.commit
                case PartVerified():
                    self._verified(report)
                case Copied():
                    self._copied(report)
                case Pruned():
                    self._pruned(report)

    def error_of(self, attempt: Attempt) -> str | None:
        """Why this rank's writer gave the attempt up; None: it did not."""
        return self._errors.get(attempt.name)

    def skipped(self, step: int, under_way: Sequence[int]) -> None:
        if self._first:
            self._events.append(CheckpointSkipped(step=step, under_way=list(under_way)))

    def committed(self, attempt: Attempt, timing: Timing) -> None:
        if not self._first:
            return
        seconds = timing.since()
        saved = CheckpointSaved(
            step=attempt.step,
            attempt=attempt.name,
            tier=self._tiers[attempt.tier],
            bytes=self._commits[attempt.name].bytes,
            seconds=timing.call + timing.joined,
            staged_seconds=seconds if timing.staged is None else timing.staged,
            committed_seconds=seconds,
        )
        self._events.append(saved)
        self._forget(attempt)

    def failed(self, attempt: Attempt, error: str, retried: Attempt | None) -> None:
        """retried: the same state's attempt on the next tier; None: given up."""
        self._forget(attempt)
        if self._first:
            tier, again = self._tiers[attempt.tier], None if retried is None else self._tiers[retried.tier]
            self._events.append(CheckpointFailed(step=attempt.step, error=error, tier=tier, retried_on=again))

    def in_a_row(self, failures: int, step: int, newest: int | None, error: str) -> None:
        """So many saves were given up in a row: an alert each time that it is the configured number more."""
        if self._first and failures % self._alert_after == 0:
            self._events.append(CheckpointAlert(step=step, failures=failures, newest=newest, error=error))

    def _forget(self, attempt: Attempt) -> None:
        self._errors.pop(attempt.name, None)
        self._commits.pop(attempt.name, None)

    def _verified(self, report: PartVerified) -> None:
        ref, error = report.ref, report.error
        if report.damaged:
            told = CheckpointDamaged(
                from_generation=ref.generation, step=ref.step, tier=report.tier, error=error or "not as written"
            )
            self._events.append(told)
            return
        if report.misread_by:
            wrong = CheckpointMisread(
                from_generation=ref.generation, step=ref.step, tier=report.tier, part=report.part,
                host=report.misread_by, error=error or "",
            )  # fmt: skip
            self._events.append(wrong)
            return
        self._events.append(
            CheckpointVerified(
                from_generation=ref.generation, step=ref.step, tier=report.tier, part=report.part, parts=self._parts,
                seconds=report.seconds, error=error,
            )
        )  # fmt: skip

    def _copied(self, report: Copied) -> None:
        # Every writer tells when its own part did not come through; rank 0's word is that of the whole commit.
        if self._first:
            self._events.append(
                CheckpointCopied(
                    from_generation=report.ref.generation, step=report.ref.step, tier=report.to, bytes=report.bytes,
                    seconds=report.seconds, error=report.error,
                )
            )  # fmt: skip

    def _pruned(self, report: Pruned) -> None:
        commits = [(ref.generation, ref.step) for ref in report.commits]
        if commits or report.attempts or report.error is not None:
            self._events.append(
                CheckpointsPruned(
                    tier=report.tier, commits=commits, attempts=report.attempts, bytes=report.bytes, error=report.error
                )
            )
