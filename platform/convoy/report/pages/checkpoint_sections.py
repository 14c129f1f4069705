"""Parts of the training pages on checkpoints: each takes the report and gives blocks or nothing."""

from convoy.display import formatting
from convoy.display.page import Block, Callout, Column, Heading, Text, columns
from convoy.report.train_report import Tier, TrainReport

_ROWS = 10


def alert(report: TrainReport) -> tuple[Block, ...]:
    """A warning that nothing is saved any more, while training continues."""
    alert = report.alert
    if alert is None:
        return ()
    lost = "Nothing is saved yet" if alert.newest is None else f"Everything after step {alert.newest:,} would be lost"
    title = f"The last {formatting.plural(alert.failures, 'checkpoint')} failed"
    return (Callout(title, f"{lost} if the gang failed now. {alert.error}", "warning"),)


def save_troubles(report: TrainReport) -> list[str]:
    """The saves that failed or were skipped, a few words for each kind."""
    kinds = {
        "skipped": report.saves.skipped,
        "abandoned": report.saves.given_up,
        "moved to another tier": report.saves.moved,
        "damaged": report.saves.damaged,
    }
    return [f"{n:,} {what}" for what, n in kinds.items() if n]


def tiers(report: TrainReport) -> tuple[Block, ...]:
    """What each shared tier holds, where there are several."""
    if len(report.tiers) < 2:
        return ()
    table = columns(
        report.tiers,
        Column("Tier", lambda t: t.uri),
        Column("Newest step", lambda t: t.newest_step, formatting.integer, missing="none"),
        Column("Behind", _behind),
        Column("Last failure", lambda t: t.error),
    )
    return (Heading("Checkpoint tiers"), *_elsewhere(report), table)


def _behind(tier: Tier) -> str | None:
    return f"{tier.behind_steps:,} steps, {formatting.duration(tier.behind_seconds)}" if tier.behind_steps else None


def _elsewhere(report: TrainReport) -> tuple[Block, ...]:
    """A note that saves pass over the first tier, since it failed."""
    first, newest = report.tiers[0].uri, report.checkpoints[-1].tier if report.checkpoints else ""
    if newest == first or newest not in {tier.uri for tier in report.tiers}:
        return ()
    return (
        Text(f"{first} did not take a checkpoint: they go to {newest}, and {first} is tried again from time to time."),
    )


def table(report: TrainReport) -> tuple[Block, ...]:
    """The newest checkpoints that can be restored, newest first."""
    if not report.checkpoints:
        return ()
    newest_first = report.checkpoints[: -_ROWS - 1 : -1]
    table = columns(
        newest_first,
        Column("Step", lambda c: c.step, formatting.integer),
        Column("Generation", lambda c: c.generation),
        Column("Size", lambda c: c.bytes, formatting.size),
        Column("Stall", lambda c: c.seconds, formatting.duration),
        Column("Time to commit", lambda c: c.committed_seconds or None, formatting.duration),
        Column("Verified", lambda c: "yes" if c.verified else "not yet"),
    )
    return (Heading("Checkpoints"), table)
