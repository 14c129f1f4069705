"""The section of a benchmark's page on how close predictions came to measurements."""

from convoy.benchmark.analysis.predictions import Quantity
from convoy.benchmark.analysis.report import BenchReport
from convoy.display import formatting
from convoy.display.page import Block, Column, Heading, Text, columns

_HOW = (
    "By the planner (docs/explanation/step-time.md), before the first block of each gang: no prediction uses a step of "
    "a benchmark. The error is relative to the measurement; + means that more was predicted than measured. Measured "
    "step times are medians over blocks. A memory peak is that of tensors alone, as in Memory."
)

_TITLES: dict[Quantity, str] = {
    "step time": "Time of a step",
    "memory peak": "Memory peak of a rank",
    "checkpoint": "Bytes of a checkpoint",
}


def predictions_section(report: BenchReport) -> tuple[Block, ...]:
    """Empty for results of versions that predicted nothing."""
    figures = report.predicted
    if figures is None:
        return ()
    summaries = columns(
        figures.summaries,
        Column("Predicted", lambda s: _TITLES[s.what]),
        Column("Cases", lambda s: s.n),
        Column("Median error", lambda s: f"{100 * s.median:.1f} %"),
        Column("Worst error", lambda s: s.worst, _signed_percent),
    )
    blocks: list[Block] = [Heading("Predicted and measured"), Text(_HOW, quiet=True), summaries]
    for summary in figures.summaries:
        form = formatting.duration if summary.what == "step time" else formatting.size
        pairs = columns(
            [pair for pair in figures.pairs if pair.what == summary.what],
            Column(_TITLES[summary.what], lambda p: f"{p.group}: {p.case}"),
            Column("Predicted", lambda p: p.predicted, form),
            Column("Measured", lambda p: p.measured, form),
            Column("Error", lambda p: p.error, _signed_percent),
        )
        blocks.append(pairs)
    if figures.calibrations:
        measured = "the ranks' measurements of the machine and " if figures.machines else ""
        constants = f"constants of the calibration of {'; '.join(figures.calibrations)}"
        blocks.append(Text(f"Step times are predicted from {measured}{constants}.", quiet=True))
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


def _signed_percent(error: float) -> str:
    """`+3.2 %`; an error that rounds to zero has no sign."""
    text = formatting.signed_percent(100 * error)
    return "0.0 %" if text == "+0.0 %" else text
