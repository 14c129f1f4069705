"""Parts of a benchmark's page on where a step's time and the memory go."""

from collections.abc import Sequence

from convoy.report import numbers
from convoy.report.bench_charts import Row, bars, stacked_bars
from convoy.report.bench_report import BenchReport, CaseFigures, GroupFigures
from convoy.report.page import Block, Heading, Table, Text
from convoy.stats.interval import Interval


def step_parts(report: BenchReport) -> tuple[Block, ...]:
    """A bar for each case that knows its parts."""
    blocks: list[Block] = []
    for group in report.groups:
        if cases := [case for case in group.cases if case.parts]:
            blocks.append(stacked_bars(_title("Step time", group), {case.name: case.parts for case in cases}))
            blocks.append(_parts(cases))
    note = "Rank 0's, of the last step of each block; medians over blocks."
    return (Heading("Step time"), Text(note, quiet=True), *blocks) if blocks else ()


def memory(report: BenchReport) -> tuple[Block, ...]:
    """A bar for each measured case whose peak was measured for it alone, where there are several."""
    charts: list[Block] = []
    for group in report.groups:
        peaks = [(case, case.memory_peak_bytes) for case in group.cases if case.rate and case.memory_peak_bytes]
        if len(peaks) > 1:
            rows = [Row(case.name, _exact(peak / 1e9), _peak(case, peak)) for case, peak in peaks]
            charts.append(bars(_title("Memory peak", group), rows, "GB"))
    note = "Of the rank that took most: of the GPU where there is one, else resident."
    return (Heading("Memory"), Text(note, quiet=True), *charts) if charts else ()


def _parts(cases: Sequence[CaseFigures]) -> Table:
    names = list(dict.fromkeys(name for case in cases for name in case.parts))
    rows = [(case.name, *(_part(case, name) for name in names)) for case in cases]
    return Table(("Case", *names), tuple(rows))


def _part(case: CaseFigures, name: str) -> str:
    """With its share of all parts."""
    seconds, total = case.parts.get(name), sum(case.parts.values())
    if seconds is None:
        return ""
    return f"{numbers.duration(seconds)} ({numbers.percent(seconds / total)})" if total else numbers.duration(seconds)


def _title(what: str, group: GroupFigures) -> str:
    return f"{what}: {group.suite}, {group.name}"


def _exact(value: float) -> Interval:
    return Interval(estimate=value, low=value, high=value, n=1)


def _peak(case: CaseFigures, peak: int) -> str:
    ratio = "" if case.memory_ratio is None else f", {numbers.percent(case.memory_ratio)}"
    return f"{numbers.size(peak)}{ratio}"
