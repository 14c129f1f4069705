"""Events of saves: from what the writer processes report, and what the gang settled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from convoy.checkpoint.format import Commit
from convoy.checkpoint.messages import Copied, PartVerified, Pruned, Report
from convoy.checkpoint.save.driver import Save, SaveOutcome
from convoy.checkpoint.save.queue import WriteAttempt
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import (
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
from convoy.job.lineage import CommitRef


@dataclass(eq=False)
class SaveEvents:
    """Appends one rank's events. Rank 0 alone reports what concerns the whole gang."""

    events: EventWriter
    tiers: Sequence[str]
    """URIs of the job."""
    parts: int
    """How many a commit has."""
    first: bool
    """This is rank 0."""
    alert_after: int
    """Failures in a row."""
    on_commit: Callable[[float], None] = lambda _: None
    """Called with the seconds from a save to its commit."""
    step: int = 0
    """Steps done."""

    def report(self, report: Report) -> None:
        match report:
            case PartVerified():
                self._append_verification(report)
            case Copied():
                self._append_copy(report)
            case Pruned():
                self._append_pruning(report)

    def on_skipped(self, step: int, under_way: Sequence[int]) -> None:
        if self.first:
            self.events.append(CheckpointSkipped(step=step, under_way=list(under_way)))

    def on_committed(self, attempt: WriteAttempt, save: Save, commit: Commit | None) -> None:
        timing = save.timing
        seconds = timing.elapsed()
        if self.first and commit is not None:  # rank 0 made it
            saved = CheckpointSaved(
                step=attempt.step,
                attempt=attempt.name,
                tier=self.tiers[attempt.tier],
                bytes=commit.bytes,
                seconds=timing.call + timing.joined,
                staged_seconds=seconds if timing.staged is None else timing.staged,
                committed_seconds=seconds,
            )
            self.events.append(saved)
        self.on_commit(seconds)

    def on_moved_to_tier(self, attempt: WriteAttempt, error: str, retried: WriteAttempt) -> None:
        self._append_failure(attempt, error, self.tiers[retried.tier])

    def on_failed(self, outcome: SaveOutcome, failures: int, newest: CommitRef | None) -> None:
        """An alert each time that the saves that failed in a row are the configured number more."""
        error = str(outcome.error)
        self._append_failure(outcome.attempt, error, None)
        if self.first and failures % self.alert_after == 0:
            step = newest.step if newest is not None else None
            self.events.append(CheckpointAlert(step=self.step, failures=failures, newest=step, error=error))

    def _append_failure(self, attempt: WriteAttempt, error: str, retried_on: str | None) -> None:
        if self.first:
            tier = self.tiers[attempt.tier]
            self.events.append(CheckpointFailed(step=attempt.step, error=error, tier=tier, retried_on=retried_on))

    def _append_verification(self, report: PartVerified) -> None:
        at: dict[str, Any] = {"from_generation": report.ref.generation, "step": report.ref.step, "tier": report.tier}
        part, error = report.part, report.error
        if report.damaged:
            self.events.append(CheckpointDamaged(**at, error=error or "not as written"))
        elif report.misread_by:
            self.events.append(CheckpointMisread(**at, part=part, host=report.misread_by, error=error or ""))
        else:
            verified = CheckpointVerified(**at, part=part, parts=self.parts, seconds=report.seconds, error=error)
            self.events.append(verified)

    def _append_copy(self, report: Copied) -> None:
        # Every writer reports when its own part did not come through; rank 0's report is that of the whole commit.
        if self.first:
            self.events.append(
                CheckpointCopied(
                    from_generation=report.ref.generation, step=report.ref.step, tier=report.to, bytes=report.bytes,
                    seconds=report.seconds, error=report.error,
                )
            )  # fmt: skip

    def _append_pruning(self, report: Pruned) -> None:
        commits = [(ref.generation, ref.step) for ref in report.commits]
        if commits or report.attempts or report.error is not None:
            self.events.append(
                CheckpointsPruned(
                    tier=report.tier, commits=commits, attempts=report.attempts, bytes=report.bytes, error=report.error
                )
            )
