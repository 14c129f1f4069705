"""The section of a benchmark's page on how close predictions came to measurements."""

from collections.abc import Callable, Sequence

from convoy.benchmark.analysis.model import BenchReport
from convoy.benchmark.analysis.predictions import Quantity
from convoy.catalog.measured_machine import Line, MeasuredMachine
from convoy.display import formatting
from convoy.display.page import Block, Column, Heading, Table, Text, columns, transposed

_HOW = (
    "By the planner (docs/explanation/step-time.md), before the first block of each gang: no prediction uses a step of "
    "a benchmark. The error is relative to the measurement; + means that more was predicted than measured. Measured "
    "step times are medians over blocks. A memory peak is that of tensors alone, as in Memory."
)

COLLECTIVE_BYTES = 1e6
"""Size at which the time of a collective is shown. The time at zero bytes and the rate are the two ends of a line, and
err in opposite directions."""

_TITLES: dict[Quantity, str] = {
    "step time": "Time of a step",
    "memory peak": "Memory peak of a rank",
    "checkpoint": "Bytes of a checkpoint",
}


def predicted(report: BenchReport) -> tuple[Block, ...]:
    """Empty for results of versions that predicted nothing."""
    figures = report.predicted
    if figures is None:
        return ()
    summaries = columns(
        figures.summaries,
        Column("Predicted", lambda s: _TITLES[s.what]),
        Column("Cases", lambda s: s.n),
        Column("Median error", lambda s: f"{100 * s.median:.1f} %"),
        Column("Worst error", lambda s: s.worst, _signed),
    )
    blocks: list[Block] = [Heading("Predicted and measured"), Text(_HOW, quiet=True), summaries]
    for summary in figures.summaries:
        form = formatting.duration if summary.what == "step time" else formatting.size
        pairs = columns(
            [pair for pair in figures.pairs if pair.what == summary.what],
            Column(_TITLES[summary.what], lambda p: f"{p.group}: {p.case}"),
            Column("Predicted", lambda p: p.predicted, form),
            Column("Measured", lambda p: p.measured, form),
            Column("Error", lambda p: p.error, _signed),
        )
        blocks.append(pairs)
    if figures.machines:
        blocks += [Text("Step times are predicted from the ranks' measurements of the machine:")]
        blocks += [_machines(figures.machines)]
    if figures.calibrations:
        blocks.append(Text(f"Constants: calibration of {'; '.join(figures.calibrations)}.", quiet=True))
    if figures.not_predicted:
        blocks.append(
            columns(
                figures.not_predicted,
                Column("Not predicted", lambda n: n.what),
                Column("Why", lambda n: n.why),
                Column("Cases", lambda n: ", ".join(n.cases)),
            )
        )
    return tuple(blocks)


def _signed(error: float) -> str:
    """`+3.2 %`; an error that rounds to zero has no sign."""
    text = formatting.signed_percent(100 * error)
    return "0.0 %" if text == "+0.0 %" else text


def _machines(machines: Sequence[MeasuredMachine]) -> Table:
    """A column for each type of number, with ranges over gangs."""
    types = sorted({machine.dtype for machine in machines}, reverse=True)
    size = formatting.size(COLLECTIVE_BYTES)
    by_type = columns(
        [[machine for machine in machines if machine.dtype == dtype] for dtype in types],
        Column("Per rank, all at once", lambda measured: measured[0].dtype),
        Column("Matrix products", _range(lambda m: m.matmul_flops, _flops)),
        Column("Attention", _range(lambda m: m.attention_flops, _flops)),
        Column("Memory", _range(lambda m: m.memory_bytes_per_second, formatting.bandwidth)),
        Column("A small operation", _range(lambda m: m.operation_seconds, formatting.duration)),
        Column(f"All-gather of {size}", _range(lambda m: _seconds(m.gather), formatting.duration)),
        Column(f"Reduce-scatter of {size}", _range(lambda m: _seconds(m.reduce), formatting.duration)),
        Column(f"All-reduce of {size}", _range(lambda m: _seconds(m.all_reduce), formatting.duration)),
        drop_empty=True,
    )
    return transposed(by_type)


def _range(
    value: Callable[[MeasuredMachine], float | None], form: formatting.Form
) -> Callable[[Sequence[MeasuredMachine]], str]:
    """`60.1 to 62.0 GFLOP/s`, over the machines on which it was measured."""
    return lambda machines: formatting.between((v for v in map(value, machines) if v is not None), form)


def _seconds(line: Line | None) -> float | None:
    return None if line is None else line.seconds(COLLECTIVE_BYTES)


def _flops(rate: float) -> str:
    return f"{formatting.significant(rate / 1e9)} GFLOP/s"
