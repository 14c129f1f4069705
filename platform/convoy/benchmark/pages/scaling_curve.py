"""Blocks of the scaling section on the curve that the planner predicts, with measured points next to it."""

from collections.abc import Iterator

from convoy.benchmark.analysis.report import BenchReport, PredictedScaling
from convoy.benchmark.pages.charts import Curve, over_ranks
from convoy.display import formatting
from convoy.display.page import Block, Column, Heading, Text, columns
from convoy.stats.interval import Interval, exact

_HOW = (
    "Predicted by the planner from the catalog's figures, not measured: each rank has as many sequences as in the "
    "measured case of most ranks. The error is the prediction over the measurement of as many ranks, minus 1; where "
    "nothing was measured there is none, and the prediction is unchecked. Efficiency is that of the prediction, over "
    "its first row. Numbers of ranks in between, such as a part of a node's, have a row if they were measured."
)


def predicted_blocks(report: BenchReport) -> Iterator[Block]:
    """A chart and a table for each model, or why there is none."""
    if any(curve.points for curve in report.scaling_predicted):
        yield Heading("Weak scaling over 1 to 64 nodes (predicted)")
        yield Text(_HOW, quiet=True)
    for curve in report.scaling_predicted:
        if curve.points:
            yield from _curve_blocks(curve)
        if curve.why:
            yield Text(
                f"Scaling over 1 to 64 nodes of {curve.model} on {curve.machine} is not predicted: {curve.why}.",
                quiet=True,
            )
        if curve.lacking:
            yield Text(f"{curve.model}, nodes without a prediction: {'; '.join(curve.lacking)}.", quiet=True)


def _curve_blocks(curve: PredictedScaling) -> Iterator[Block]:
    first = curve.points[0]
    rates: dict[str, Curve] = {"predicted": [(p.ranks, exact(p.tokens_per_second)) for p in curve.points]}
    if measured := [(p.ranks, p.measured) for p in curve.points if p.measured is not None]:
        rates["measured"] = measured
    ideal = [(p.ranks, p.ranks * first.tokens_per_second / first.ranks) for p in curve.points]
    yield over_ranks(f"Throughput predicted, {curve.model} on {curve.machine}", rates, "tokens per second", ideal)
    yield columns(
        curve.points,
        Column("Nodes", lambda p: p.nodes),
        Column("Ranks", lambda p: p.ranks),
        Column("Predicted", lambda p: p.tokens_per_second, formatting.rate),
        Column("Efficiency (predicted)", lambda p: p.efficiency, formatting.percent),
        Column("Measured", lambda p: p.measured, _measured, missing="not measured"),
        Column("Error", lambda p: p.error, lambda error: formatting.signed_percent(100 * error)),
    )


def _measured(rate: Interval) -> str:
    return formatting.estimate(rate, formatting.rate)
