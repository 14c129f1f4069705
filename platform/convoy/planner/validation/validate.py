"""How near predictions come to measured runs, versus a baseline that knows no physics.

The baseline is a constant hardware FLOPs utilisation (HFU): tokens/s times the operations of a token, recomputation
included, over the GPU's peak.
"""

import statistics
from collections.abc import Sequence

from pydantic import Field

from convoy.config.base import FrozenConfig
from convoy.model.counts import parameter_count
from convoy.planner.step.calibration import Calibration
from convoy.planner.step.hardware import peak_rates
from convoy.planner.step.step_time import gpu_tokens_per_second, step_time
from convoy.planner.validation.published import MeasuredRun, memory_of
from convoy.planner.workload import Machine


class RowError(FrozenConfig):
    """One measured run."""

    index: int
    """From 0, in the order of the file."""
    predicted_tokens_per_s_per_gpu: float
    measured: float
    pct_error: float
    """Positive where the prediction is too fast."""
    fits: bool
    """Whether it is predicted to fit in the GPU's memory."""


class Validation(FrozenConfig):
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
    rows_fitted: int = Field(exclude=True)
    """Rows that the calibration was fitted to."""


def validate(
    measured: Sequence[MeasuredRun], references: Sequence[MeasuredRun], calibration: Calibration
) -> Validation:
    """references: what the baseline learns from. Raises ValueError, with the row's number, for a GPU that the catalog
    or the calibration does not have."""
    rows = tuple(_row_error(index, run, calibration) for index, run in enumerate(measured))
    errors = [row.pct_error for row in rows]
    constant = baseline_errors(references, measured)
    return Validation(
        rows=len(rows),
        median_abs_pct_error=median_abs(errors),
        p90_abs_pct_error=p90_abs(errors),
        baseline_median_abs_pct_error=median_abs(constant) if constant else None,
        baseline_p90_abs_pct_error=p90_abs(constant) if constant else None,
        fits_predicted=sum(row.fits for row in rows),
        per_row=rows,
        rows_fitted=sum(run.digest in calibration.seen for run in measured),
    )


def median_abs(errors: Sequence[float]) -> float:
    return statistics.median(map(abs, errors))


def p90_abs(errors: Sequence[float]) -> float:
    """The 90th percentile of their sizes, interpolated."""
    sizes = [abs(error) for error in errors]
    return statistics.quantiles(sizes, n=10, method="inclusive")[8] if len(sizes) > 1 else sizes[0]


def baseline_errors(references: Sequence[MeasuredRun], measured: Sequence[MeasuredRun]) -> list[float]:
    """Errors in percent of the median HFU of all references on the same kind of GPU, of the runs on GPUs that the
    references have."""
    alike = [(run, _on_same_gpu(references, run.workload.machine)) for run in measured]
    return [100 * (statistics.median(map(_hfu, others)) / _hfu(run) - 1) for run, others in alike if others]


def _on_same_gpu(references: Sequence[MeasuredRun], machine: Machine) -> list[MeasuredRun]:
    """Runs on the same chip with as much memory, or with any where there are none."""
    chip = [run for run in references if run.workload.machine.gpu == machine.gpu]
    return [run for run in chip if run.workload.machine.memory_bytes == machine.memory_bytes] or chip


def _hfu(run: MeasuredRun) -> float:
    """Operations of a token are r (6 N + 12 L d S), where N counts all parameters, and r is 4/3 if all blocks are
    recomputed."""
    job, model = run.workload, run.workload.model
    attention = 12.0 * model.n_layers * model.d_model * job.sequence_length
    repeated = 4 / 3 if job.train.activation_checkpointing == "full" else 1.0
    operations = repeated * (6.0 * parameter_count(model) + attention)
    return run.tokens_per_second * operations / peak_rates(job.machine).flops


def _row_error(index: int, run: MeasuredRun, calibration: Calibration) -> RowError:
    try:
        predicted = gpu_tokens_per_second(run.workload, step_time(run.workload, calibration, run.kernels, run.machine))
    except ValueError as error:
        raise ValueError(f"row {index}: {error}") from None
    return RowError(
        index=index,
        predicted_tokens_per_s_per_gpu=predicted,
        measured=run.tokens_per_second,
        pct_error=100 * (predicted / run.tokens_per_second - 1),
        fits=memory_of(run).fits,
    )
