"""Benchmarks at different times: the section on earlier runs, and the page that compares two runs."""

from collections.abc import Sequence
from datetime import UTC

from convoy.benchmark.analysis.report import BenchReport, HistoryFigures
from convoy.benchmark.pages.charts import over_runs
from convoy.benchmark.results.compare import Comparison, Comparisons
from convoy.display import formatting
from convoy.display.page import Block, Chart, Column, Heading, Page, Text, columns
from convoy.stats.changepoint import MIN_AFTER, MIN_BEFORE, ChangePoint

CHARTS = 6
"""Most charts of a history: those with changes come first, then those with the most runs."""

_HOW = (
    "Compared with earlier runs of the same fingerprint: hardware, versions, environment and configuration. A change "
    "is reported if chance alone would show as much in fewer than 4 of 100 histories."
)


def history_section(report: BenchReport) -> tuple[Block, ...]:
    """Changes, and the smallest that would have been seen."""
    if report.history is None:
        return ()
    repeated = [each for each in report.history if len(each.runs) > 1]
    heading = Heading("History")
    if not repeated:
        return (heading, Text("No earlier run has the same fingerprint, so no changes are reported."))
    table = columns(
        repeated,
        Column("Case", lambda h: _name(h.case, h.size)),
        Column("Runs", lambda h: f"{len(h.runs)} since {h.runs[0].measured.astimezone(UTC).date()}"),
        Column("Now", lambda h: _rate_form(h.size)(h.runs[-1].rate)),
        Column("Changes", lambda h: "; ".join(_change(h, change) for change in h.changes) or _unchanged(h)),
        Column("Smallest detectable change", _detectable_text),
    )
    return (heading, Text(_HOW, quiet=True), table, *_charts(repeated))


def _detectable_text(history: HistoryFigures) -> str:
    if history.detectable is not None:
        return f"± {formatting.percent(history.detectable)}"
    return "none yet: too few runs since the last change" if history.changes else ""


def _change(history: HistoryFigures, change: ChangePoint) -> str:
    word = "REGRESSION" if change.effect < 0 else "faster"
    first = history.runs[change.at].measured.astimezone(UTC)
    return f"{word} by {formatting.percent(abs(change.effect))} since {first:%Y-%m-%d %H:%M}"


def _unchanged(history: HistoryFigures) -> str:
    lacking = MIN_BEFORE + MIN_AFTER - len(history.runs)
    return f"too few runs: {formatting.plural(lacking, 'more run')} needed" if lacking > 0 else "none detected"


def _charts(histories: Sequence[HistoryFigures]) -> list[Chart]:
    first = sorted(histories, key=lambda each: (not each.changes, -len(each.runs), each.case, each.size or 0))[:CHARTS]
    return [
        over_runs(
            _name(each.case, each.size),
            [run.rate for run in each.runs],
            {change.at: change.effect > 0 for change in each.changes},
            "tokens per second" if each.size is None else "bytes per second",
        )
        for each in first
        if len(each.runs) > 2
    ]


_APART = (
    "Intervals are 95 % intervals; ratios are those of two samples, since the runs were measured apart. They do not "
    "include differences from run to run, such as clock rates and neighbours: several runs of each side show more."
)


def compare_page(comparisons: Comparisons) -> Page:
    """A row for each case that both runs have, and the names of cases that one of them lacks."""
    blocks: list[Block] = [Heading("Second run versus the first", level=1)]
    if comparisons.cases:
        table = columns(
            comparisons.cases,
            Column("Case", lambda c: _name(c.case, c.size)),
            Column("First", lambda c: c.first and formatting.estimate(c.first, _rate_form(c.size))),
            Column("Second", lambda c: c.second and formatting.estimate(c.second, _rate_form(c.size))),
            Column("Second over first", lambda c: c.ratio, formatting.ratio),
            Column("", _result),
        )
        blocks += [table, Text(_APART, quiet=True)]
    else:
        blocks.append(Text("No case is in both."))
    blocks += [Text(f"Only in the first: {key}") for key in comparisons.only_first]
    blocks += [Text(f"Only in the second: {key}") for key in comparisons.only_second]
    return Page("Comparison", tuple(blocks))


def _result(comparison: Comparison) -> str:
    if comparison.ratio is None:
        return f"not compared: {comparison.reason}"
    if not comparison.differs:
        return "no difference detected"
    return "faster in this run" if comparison.ratio.estimate > 1 else "SLOWER in this run"


def _name(case: str, size: int | None) -> str:
    return case if size is None else f"{case} {formatting.buffer_size(size)}"


def _rate_form(size: int | None) -> formatting.Form:
    """Of tokens, or of bytes of a size."""
    return formatting.rate if size is None else formatting.bandwidth
