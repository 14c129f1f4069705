"""Predicted versus measured speeds, as a page."""

from collections import Counter
from collections.abc import Iterator

from convoy.display.formatting import plural
from convoy.display.page import Block, Heading, Page, Table, Text
from convoy.planner.step.calibration import Calibration
from convoy.planner.validation.published import MeasuredRun
from convoy.planner.validation.validate import Validation

_TITLE = "Predicted and measured"
_HEADERS = ("#", "model", "machines", "sharding", "recomputed", "predicted", "measured", "error")


def validation_page(result: Validation, measured: list[MeasuredRun], calibration: Calibration) -> Page:
    predictors = (
        ("this planner", result.median_abs_pct_error, result.p90_abs_pct_error),
        (
            "constant HFU for each kind of GPU",
            result.baseline_median_abs_pct_error,
            result.baseline_p90_abs_pct_error,
        ),
    )
    blocks: list[Block] = [
        Heading(_TITLE, level=1),
        Text("Tokens/s of each GPU; the error is of the prediction.", quiet=True),
        Table(_HEADERS, tuple(_row(result, run, index) for index, run in enumerate(measured))),
        Table(
            ("predictor", "median", "90th percentile"),
            tuple((name, _percent(median), _percent(p90)) for name, median, p90 in predictors),
        ),
        *_facts(measured),
        Text(f"Calibration of {calibration.date}: {calibration.data}.", quiet=True),
    ]
    if result.rows_fitted:
        blocks.append(
            Text(f"{result.rows_fitted} of the {result.rows} rows are among those that it was fitted to.", quiet=True)
        )
    return Page(_TITLE, tuple(blocks))


def _row(result: Validation, run: MeasuredRun, index: int) -> tuple[str, ...]:
    errors, job = result.per_row[index], run.workload
    return (
        str(index),
        run.name,
        f"{job.nodes} × {job.machine.ranks} {job.machine.gpu}",
        job.parallel.strategy,
        job.train.activation_checkpointing,
        f"{errors.predicted_tokens_per_s_per_gpu:,.0f}",
        f"{errors.measured:,.0f}",
        f"{errors.pct_error:+.1f} %",
    )


def _facts(measured: list[MeasuredRun]) -> Iterator[Block]:
    """What the sources of rows imply and no column states."""
    yield Text("Taken from the sources of rows, where no column has it:", quiet=True)
    for fact, rows in Counter(fact for run in measured for fact in run.facts).items():
        yield Text(f"{plural(rows, 'row')}: {fact}.", quiet=True)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"
