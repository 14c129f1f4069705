"""Fits the constants of the step-time model to measured runs: the most probable ones, given a prior from physics.

Least squares in the logarithm of tokens/s, each row weighted by Cauchy's function, so that a run near the end of its
memory pulls little, with one further residual for each constant, its distance from the prior in the prior's own spread.
Solved by the method of Levenberg and Marquardt (Marquardt 1963, J. SIAM 11(2), 431-441).
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from convoy.planner.step.calibration import Calibration, Constants, FitErrors, Prior, efficiency_key
from convoy.planner.step.step_time import StepCounts, step_counts, time_from_counts
from convoy.planner.step.work import Kernels
from convoy.planner.validation.published import MeasuredRun

NOISE = 0.03
"""Spread of a measurement about the model, as a share: how much rows count against priors."""
_ROUNDS = 40
_STEP = 1e-4


def fit_calibration(measured: Sequence[MeasuredRun], prior: Prior) -> Calibration:
    """A calibration of today. Constants without a spread in the prior stay as they are. Raises ValueError where a
    GPU is not in the catalog or the prior."""
    batches = _group_runs(measured, prior)
    names = list(prior.spread)
    start = np.log([_constant(prior.constants, name) for name in names])
    widths = np.array(list(prior.spread.values()))

    def residuals(x: Any) -> Any:
        constants = _with_values(prior.constants, dict(zip(names, np.exp(x), strict=True)))
        return np.concatenate([batch.log_errors(constants) for batch in batches]) / NOISE

    solution = _minimise(residuals, start, widths)
    values = {name: float(f"{value:.3g}") for name, value in zip(names, np.exp(solution), strict=True)}
    calibration = Calibration(
        date=datetime.date.today(),
        data=f"{len(measured)} runs of {', '.join(dict.fromkeys(row.source for row in measured))}",
        constants=_with_values(prior.constants, values),
        seen=tuple(dict.fromkeys(run.digest for run in measured)),
        stands_for=prior.stands_for,
    )
    sizes = np.abs(percent_errors(measured, calibration))
    fitted = FitErrors(
        rows=len(sizes),
        median_abs_pct_error=round(float(np.median(sizes)), 2),
        p90_abs_pct_error=round(float(np.percentile(sizes, 90)), 2),
    )
    return calibration.model_copy(update={"fitted": fitted})


def percent_errors(measured: Sequence[MeasuredRun], calibration: Calibration) -> list[float]:
    """Errors of the predicted tokens/s, in percent of the measured, in order; positive where it is too fast."""
    errors = np.empty(len(measured))
    for batch in _group_runs(measured, calibration):
        errors[list(batch.indices)] = 100 * np.expm1(batch.log_errors(calibration.constants))
    return [float(error) for error in errors]


@dataclass(frozen=True)
class _RunGroup:
    """Measurements that share their efficiencies, so that one evaluation of the formulas over arrays serves all."""

    indices: tuple[int, ...]
    chip: str
    kernels: Kernels
    counted: StepCounts
    """Arrays."""
    log_speed: Any
    """Natural logarithms of the measured tokens/s."""

    def log_errors(self, constants: Constants) -> Any:
        """Natural logarithms of predicted over measured tokens/s."""
        time = time_from_counts(self.counted, constants, self.chip, self.kernels)
        return np.log(self.counted.tokens / time.total) - self.log_speed


def _group_runs(measured: Sequence[MeasuredRun], calibration: Calibration) -> list[_RunGroup]:
    alike: dict[tuple[str, Kernels], list[int]] = {}
    for index, row in enumerate(measured):
        machine = row.workload.machine
        chip = efficiency_key(calibration, machine.measured.kind if machine.measured else machine.gpu)
        alike.setdefault((chip, row.kernels), []).append(index)
    return [
        _RunGroup(
            indices=tuple(indices),
            chip=chip,
            kernels=kernels,
            counted=_stack([step_counts(measured[i].workload, kernels, measured[i].machine) for i in indices]),
            log_speed=np.log([measured[index].tokens_per_second for index in indices]),
        )
        for (chip, kernels), indices in alike.items()
    ]


def _stack(values: Sequence[Any]) -> Any:
    """One dataclass of arrays, from dataclasses of numbers."""
    first = values[0]
    if is_dataclass(first):
        arrays = {field.name: _stack([getattr(value, field.name) for value in values]) for field in fields(first)}
        return first.__class__(**arrays)
    return first if isinstance(first, str) else np.array(values, dtype=float)


def _minimise(residuals: Callable[[Any], Any], start: Any, widths: Any) -> Any:
    """The point at which Cauchy's loss of the residuals and the squared distance from `start`, in `widths`, have the
    smallest sum."""

    def loss(x: Any) -> float:
        return float(2 * np.log1p(residuals(x) ** 2 / 4).sum() + 0.5 * (((x - start) / widths) ** 2).sum())

    x, damping, least = start.copy(), 1e-2, loss(start)
    for _ in range(_ROUNDS):
        here = residuals(x)
        weights = 1 / (1 + here**2 / 4)
        slopes = np.stack([(residuals(x + _STEP * unit) - here) / _STEP for unit in np.eye(len(x))], axis=1)
        curvature = slopes.T @ (weights[:, None] * slopes) + np.diag(1 / widths**2)
        downhill = -(slopes.T @ (weights * here) + (x - start) / widths**2)
        for _ in range(10):
            step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), downhill)
            stepped = loss(x + step)
            if stepped < least:
                break
            damping *= 4
        else:
            return x
        settled = least - stepped < 1e-4
        x, least, damping = x + step, stepped, damping / 5
        if settled:
            return x
    return x


def _constant(constants: Constants, name: str) -> float:
    field, _, chip = name.partition(".")
    value = getattr(constants, field)
    return float(value[chip] if chip else value)


def _with_values(constants: Constants, values: Mapping[str, float]) -> Constants:
    updated = constants.model_dump()
    for name, value in values.items():
        field, _, chip = name.partition(".")
        if chip:
            updated[field][chip] = float(value)
        else:
            updated[field] = float(value)
    return Constants.model_construct(**updated)
