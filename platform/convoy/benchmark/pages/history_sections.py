"""Parts of a benchmark's page on earlier runs of the same."""

from collections.abc import Sequence
from datetime import UTC

from convoy.benchmark.analysis.model import BenchReport, HistoryFigures
from convoy.benchmark.pages.curves import over_runs
from convoy.display import formatting
from convoy.display.page import Block, Chart, Heading, Table, Text
from convoy.stats.changepoint import FEWEST_AFTER, FEWEST_BEFORE, Change

CHARTS = 6
"""At most so many: those that changed first, then those with the most runs."""

_HOW = (
    "Beside earlier runs of the same fingerprint: hardware, versions, environment and configuration. A change is told "
    "where chance alone would show as much in fewer than 4 of 100 histories."
)


def history(report: BenchReport) -> tuple[Block, ...]:
    """Changes, and the smallest that would have been seen; a line where there was no earlier run."""
    if report.history is None:
        return ()
    known = [each for each in report.history if len(each.runs) > 1]
    heading = Heading("History")
    if not known:
        return (heading, Text("No earlier run has the same fingerprint, so nothing is told of changes."))
    headers = ("Case", "Runs", "Now", "Changes", "Smallest change it would have shown")
    table = Table(headers, tuple(_row(each) for each in known))
    return (heading, Text(_HOW, quiet=True), table, *_charts(known))


def _row(history: HistoryFigures) -> tuple[str, ...]:
    return (
        history.case,
        f"{len(history.runs)} since {history.runs[0].measured.astimezone(UTC).date()}",
        formatting.rate(history.runs[-1].tokens_per_second),
        "; ".join(_change(history, change) for change in history.changes) or _none(history),
        _smallest(history),
    )


def _smallest(history: HistoryFigures) -> str:
    if history.detectable is not None:
        return f"± {formatting.percent(history.detectable)}"
    return "none yet: too few runs since the last change" if history.changes else ""


def _change(history: HistoryFigures, change: Change) -> str:
    word = "REGRESSION" if change.effect < 0 else "faster"
    first = history.runs[change.at].measured.astimezone(UTC)
    return f"{word} by {formatting.percent(abs(change.effect))} since {first:%Y-%m-%d %H:%M}"


def _none(history: HistoryFigures) -> str:
    lacking = FEWEST_BEFORE + FEWEST_AFTER - len(history.runs)
    return f"too few to tell: {formatting.plural(lacking, 'more run')} needed" if lacking > 0 else "none seen"


def _charts(known: Sequence[HistoryFigures]) -> list[Chart]:
    shown = sorted(known, key=lambda each: (not each.changes, -len(each.runs), each.case))[:CHARTS]
    return [
        over_runs(
            each.case,
            [run.tokens_per_second for run in each.runs],
            {change.at: change.effect > 0 for change in each.changes},
        )
        for each in shown
        if len(each.runs) > 2
    ]
