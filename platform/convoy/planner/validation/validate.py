"""How near predictions come to measurements, beside predictors that know nothing."""

import statistics
from collections.abc import Callable, Sequence

from pydantic import Field

from convoy.config.base import Frozen
from convoy.planner.step.calibration import Calibration
from convoy.planner.step.step_time import step_time, tokens_per_second
from convoy.planner.validation.baselines import constant_hfu, nearest
from convoy.planner.validation.digest import digest
from convoy.planner.validation.published import Measured


class RowError(Frozen):
    """One measured run."""

    index: int
    """From 0, in the order of the file."""
    predicted_tokens_per_s_per_gpu: float
    measured: float
    pct_error: float
    """Of the prediction: positive where it is too fast."""
    fits: bool | None
    """In the GPU's memory, as predicted; None: not told."""
    name: str = Field(exclude=True)


class Validation(Frozen):
    """Errors in percent. The baseline is a constant HFU for each kind of GPU, fitted to the shipped measurements; null
    where these have none of the file's GPUs."""

    rows: int
    median_abs_pct_error: float
    p90_abs_pct_error: float
    baseline_median_abs_pct_error: float | None
    baseline_p90_abs_pct_error: float | None
    fits_predicted: int
    """Rows that are predicted to fit."""
    per_row: tuple[RowError, ...]
    lookup_median_abs_pct_error: float | None = Field(exclude=True)
    """Of the nearest neighbour among the shipped measurements."""
    lookup_p90_abs_pct_error: float | None = Field(exclude=True)
    seen: int = Field(exclude=True)
    """Rows that the calibration was fitted to."""


def validate(
    measured: Sequence[Measured],
    known: Sequence[Measured],
    calibration: Calibration,
    fits: Callable[[Measured], bool] | None = None,
) -> Validation:
    """known: what the other predictors learn from. fits: whether a run fits in memory. Raises ValueError, with the
    row's number, for a GPU that the catalog or the calibration does not have."""
    rows = tuple(_row(index, row, calibration, fits) for index, row in enumerate(measured))
    wrong = [row.pct_error for row in rows]
    constant = _errors(measured, [constant_hfu(known, row.workload) for row in measured])
    lookup = _errors(measured, [nearest(known, row.workload) for row in measured])
    return Validation(
        rows=len(rows),
        median_abs_pct_error=median_abs(wrong),
        p90_abs_pct_error=p90_abs(wrong),
        baseline_median_abs_pct_error=median_abs(constant) if constant else None,
        baseline_p90_abs_pct_error=p90_abs(constant) if constant else None,
        fits_predicted=sum(row.fits is True for row in rows),
        per_row=rows,
        lookup_median_abs_pct_error=median_abs(lookup) if lookup else None,
        lookup_p90_abs_pct_error=p90_abs(lookup) if lookup else None,
        seen=sum(digest(row) in calibration.seen for row in measured),
    )


def median_abs(wrong: Sequence[float]) -> float:
    """Of the sizes of errors."""
    return statistics.median(map(abs, wrong))


def p90_abs(wrong: Sequence[float]) -> float:
    """Their 90th percentile, between two of them in proportion."""
    sizes = [abs(error) for error in wrong]
    return statistics.quantiles(sizes, n=10, method="inclusive")[8] if len(sizes) > 1 else sizes[0]


def _row(index: int, row: Measured, calibration: Calibration, fits: Callable[[Measured], bool] | None) -> RowError:
    try:
        predicted = tokens_per_second(row.workload, step_time(row.workload, calibration, row.kernels, row.machine))
    except ValueError as error:
        raise ValueError(f"row {index}: {error}") from None
    return RowError(
        index=index,
        predicted_tokens_per_s_per_gpu=predicted,
        measured=row.tokens_per_second,
        pct_error=_percent(predicted, row),
        fits=fits(row) if fits else None,
        name=row.name,
    )


def _errors(measured: Sequence[Measured], predicted: Sequence[float | None]) -> list[float]:
    return [_percent(speed, row) for speed, row in zip(predicted, measured, strict=True) if speed is not None]


def _percent(predicted: float, row: Measured) -> float:
    return 100 * (predicted / row.tokens_per_second - 1)
