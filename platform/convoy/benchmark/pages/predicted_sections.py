"""Part of a benchmark's page on how near predictions came to what was measured."""

from collections.abc import Callable, Sequence

from convoy.benchmark.analysis.model import BenchReport
from convoy.benchmark.analysis.predictions import Paired, PredictedFigures, Quantity, Summary
from convoy.catalog.measured_machine import Line, MeasuredMachine
from convoy.display import formatting
from convoy.display.page import Block, Heading, Table, Text

_HOW = (
    "By the planner (docs/explanation/step-time.md), before the first block of each gang: no step of a benchmark is in "
    "a prediction. "
    "The error is that of the prediction, over what was measured; + is more than was measured. Measured step times are "
    "medians over blocks. A memory peak is of tensors alone, as in Memory."
)

SHOWN_BYTES = 1e6
"""Of a collective whose time is shown: that of none, and a rate, are the two ends of a line and err the other way."""

_TITLES: dict[Quantity, str] = {
    "step time": "Time of a step",
    "memory peak": "Memory peak of a rank",
    "checkpoint": "Bytes of a checkpoint",
}


def predicted(report: BenchReport) -> tuple[Block, ...]:
    """Nothing for results of versions that predicted nothing."""
    found = report.predicted
    if found is None:
        return ()
    blocks: list[Block] = [Heading("Predicted and measured"), Text(_HOW, quiet=True), _summaries(found.summaries)]
    for summary in found.summaries:
        blocks.append(_pairs(summary.what, [pair for pair in found.pairs if pair.what == summary.what]))
    if found.machines:
        blocks += [Text("Step times are predicted from what ranks had measured of the machine:"), _machines(found)]
    if found.calibrations:
        blocks.append(Text(f"Constants: calibration of {'; '.join(found.calibrations)}.", quiet=True))
    if found.not_predicted:
        rows = tuple((each.what, each.why, ", ".join(each.cases)) for each in found.not_predicted)
        blocks.append(Table(("Not predicted", "Why", "Cases"), rows))
    return tuple(blocks)


def signed(error: float) -> str:
    """`+3.2 %`, and `0.0 %` on either side of nothing."""
    percent = round(100 * error, 1)
    return f"{percent:+.1f} %" if percent else "0.0 %"


def _summaries(found: Sequence[Summary]) -> Table:
    rows = tuple((_TITLES[each.what], str(each.n), f"{100 * each.median:.1f} %", signed(each.worst)) for each in found)
    return Table(("Predicted", "Cases", "Median error", "Worst error"), rows)


def _pairs(what: Quantity, pairs: Sequence[Paired]) -> Table:
    form = formatting.duration if what == "step time" else formatting.size
    rows = tuple(
        (f"{pair.group}: {pair.case}", form(pair.predicted), form(pair.measured), signed(pair.error)) for pair in pairs
    )
    return Table((_TITLES[what], "Predicted", "Measured", "Error"), rows)


def _machines(found: PredictedFigures) -> Table:
    """A column for each type of number; the least and the most over gangs."""
    types = sorted({machine.dtype for machine in found.machines}, reverse=True)
    told = [[machine for machine in found.machines if machine.dtype == dtype] for dtype in types]
    rows = [
        ("Matrix products", _flops(lambda m: m.matmul_flops)),
        ("Attention", _flops(lambda m: m.attention_flops)),
        ("Memory", _rate(lambda m: m.memory_bytes_per_second)),
        ("A small operation", lambda machines: _range([m.operation_seconds for m in machines], formatting.duration)),
        (f"All-gather of {formatting.size(SHOWN_BYTES)}", _line(lambda m: m.gather)),
        (f"Reduce-scatter of {formatting.size(SHOWN_BYTES)}", _line(lambda m: m.reduce)),
        (f"All-reduce of {formatting.size(SHOWN_BYTES)}", _line(lambda m: m.all_reduce)),
    ]
    cells = tuple((name, *(of(machines) for machines in told)) for name, of in rows)
    return Table(("Of a rank, all at once", *types), tuple(row for row in cells if any(row[1:])))


_Told = Callable[[Sequence[MeasuredMachine]], str]


def _flops(of: Callable[[MeasuredMachine], float | None]) -> _Told:
    return lambda machines: _range(
        [of(m) for m in machines], lambda rate: f"{formatting.significant(rate / 1e9)} GFLOP/s"
    )


def _rate(of: Callable[[MeasuredMachine], float | None]) -> _Told:
    return lambda machines: _range([of(m) for m in machines], _per_second)


def _line(of: Callable[[MeasuredMachine], Line | None]) -> _Told:
    def told(machines: Sequence[MeasuredMachine]) -> str:
        lines = [line for line in map(of, machines) if line is not None]
        return _range([line.seconds(SHOWN_BYTES) for line in lines], formatting.duration)

    return told


def _per_second(rate: float) -> str:
    return f"{formatting.size(rate)}/s"


def _range(told: Sequence[float | None], form: formatting.Form) -> str:
    """`60.1 to 62.0 GFLOP/s`; empty where nobody measured it."""
    found = [value for value in told if value is not None]
    if not found:
        return ""
    low, high = form(min(found)), form(max(found))
    number, _, unit = low.partition(" ")
    return high if low == high else f"{number if high.endswith(f' {unit}') else low} to {high}"
