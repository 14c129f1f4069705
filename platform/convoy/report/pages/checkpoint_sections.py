"""Parts of the training pages on checkpoints: each takes the report and gives blocks or nothing."""

from convoy.display import formatting
from convoy.display.page import Block, Callout, Heading, Table, Text
from convoy.report.train_report import TrainReport

_ROWS = 10


def alert(report: TrainReport) -> tuple[Block, ...]:
    """That nothing is saved any more, while training goes on."""
    found = report.alert
    if found is None:
        return ()
    lost = "Nothing is saved yet" if found.newest is None else f"Everything after step {found.newest:,} would be lost"
    title = f"The last {formatting.plural(found.failures, 'checkpoint')} failed"
    return (Callout(title, f"{lost} if the gang failed now. {found.error}", "warning"),)


def save_troubles(report: TrainReport) -> list[str]:
    """Saves that did not go as they should, a few words for each kind."""
    kinds = {
        "skipped": report.saves.skipped,
        "given up": report.saves.given_up,
        "moved to another tier": report.saves.moved,
        "damaged": report.saves.damaged,
    }
    return [f"{n:,} {what}" for what, n in kinds.items() if n]


def tiers(report: TrainReport) -> tuple[Block, ...]:
    """What each shared place for checkpoints holds, where there are several."""
    if len(report.tiers) < 2:
        return ()
    rows = tuple(
        (
            t.uri,
            "none" if t.newest_step is None else f"{t.newest_step:,}",
            f"{t.behind_steps:,} steps, {formatting.duration(t.behind_seconds)}" if t.behind_steps else "",
            t.error or "",
        )
        for t in report.tiers
    )
    table = Table(("Tier", "Newest step", "Behind", "Last failure"), rows)
    return (Heading("Checkpoint tiers"), *_elsewhere(report), table)


def _elsewhere(report: TrainReport) -> tuple[Block, ...]:
    """That saves pass over the first tier, since it failed."""
    first, newest = report.tiers[0].uri, report.checkpoints[-1].tier if report.checkpoints else ""
    if newest == first or newest not in {tier.uri for tier in report.tiers}:
        return ()
    return (Text(f"{first} did not take a checkpoint: they go to {newest}, and it is tried again from time to time."),)


def table(report: TrainReport) -> tuple[Block, ...]:
    """The newest checkpoints that can be restored, newest first."""
    if not report.checkpoints:
        return ()
    rows = tuple(
        (
            f"{c.step:,}",
            str(c.generation),
            formatting.size(c.bytes),
            formatting.duration(c.seconds),
            formatting.duration(c.committed_seconds) if c.committed_seconds else "",
            "yes" if c.verified else "not yet",
        )
        for c in reversed(report.checkpoints[-_ROWS:])
    )
    headers = ("Step", "Generation", "Size", "Training stood still", "Committed after", "Read back")
    return (Heading("Checkpoints"), Table(headers, rows))
