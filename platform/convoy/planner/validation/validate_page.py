"""Predicted and measured speeds, as a page."""

from collections.abc import Iterator

from convoy.display.page import Block, Heading, Page, Table, Text
from convoy.planner.step.calibration import Calibration
from convoy.planner.validation.published import Measured
from convoy.planner.validation.validate import Validation

_TITLE = "Predicted and measured"
_HEADERS = ("#", "model", "machines", "sharding", "recomputed", "predicted", "measured", "error")


def validation_page(found: Validation, measured: list[Measured], calibration: Calibration) -> Page:
    blocks: list[Block] = [
        Heading(_TITLE, level=1),
        Text("Tokens/s of each GPU; the error is of the prediction.", quiet=True),
        Table(_HEADERS, tuple(_line(found, row, index) for index, row in enumerate(measured))),
        Table(
            ("predictor", "median", "90th percentile"),
            (
                ("this planner", _percent(found.median_abs_pct_error), _percent(found.p90_abs_pct_error)),
                (
                    "constant HFU for each kind of GPU",
                    _percent(found.baseline_median_abs_pct_error),
                    _percent(found.baseline_p90_abs_pct_error),
                ),
                (
                    "nearest neighbour",
                    _percent(found.lookup_median_abs_pct_error),
                    _percent(found.lookup_p90_abs_pct_error),
                ),
            ),
        ),
        *_taken(measured),
        Text(f"Calibration of {calibration.date}: {calibration.data}.", quiet=True),
    ]
    if found.seen:
        blocks.append(Text(f"{found.seen} of the {found.rows} rows are among those that it was fitted to.", quiet=True))
    return Page(_TITLE, tuple(blocks))


def _line(found: Validation, row: Measured, index: int) -> tuple[str, ...]:
    told, job = found.per_row[index], row.workload
    return (
        str(index),
        row.name,
        f"{job.nodes} × {job.machine.ranks} {job.machine.gpu}",
        job.parallel.strategy,
        job.train.activation_checkpointing,
        f"{told.predicted_tokens_per_s_per_gpu:,.0f}",
        f"{told.measured:,.0f}",
        f"{told.pct_error:+.1f} %",
    )


def _taken(measured: list[Measured]) -> Iterator[Block]:
    """What no column says, and was taken by the rows' sources."""
    yield Text("Taken by the rows' sources, beside what the columns say:", quiet=True)
    for fact in dict.fromkeys(fact for row in measured for fact in row.facts):
        yield Text(f"{_numbers([at for at, row in enumerate(measured) if fact in row.facts])}: {fact}.", quiet=True)


def _numbers(rows: list[int]) -> str:
    """`Rows 0 to 21, 28`."""
    runs = [[rows[0], rows[0]]]
    for at in rows[1:]:
        if at == runs[-1][1] + 1:
            runs[-1][1] = at
        else:
            runs.append([at, at])
    told = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)
    return f"{'Row' if len(rows) == 1 else 'Rows'} {told}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"
