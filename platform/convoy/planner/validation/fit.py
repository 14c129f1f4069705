"""Constants from measurements: the most probable ones, given what physics says of them beforehand.

Least squares in the logarithm of tokens/s, each row weighted by Cauchy's function, so that a run near the end of its
memory pulls little, with one further residual for each constant, its distance from the prior in the prior's own spread.
Solved by the method of Levenberg and Marquardt (Marquardt 1963, J. SIAM 11(2), 431-441).
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from convoy.planner.step.calibration import Calibration, Constants, Fitted
from convoy.planner.step.prior import Prior
from convoy.planner.validation.digest import digest
from convoy.planner.validation.published import Measured
from convoy.planner.validation.vectorised import batches, percent_errors

NOISE = 0.03
"""Spread of a measurement about the model, as a share: how much rows count against priors."""
_ROUNDS = 40
_STEP = 1e-4


def fit(measured: Sequence[Measured], prior: Prior) -> Calibration:
    """A calibration of today. Constants whose spread the prior does not have keep its value. Raises ValueError where a
    GPU is not in the catalog or the prior."""
    known = batches(measured, prior)
    names = list(prior.spread)
    start = np.log([_get(prior.constants, name) for name in names])
    widths = np.array(list(prior.spread.values()))

    def residuals(x: Any) -> Any:
        constants = _with(prior.constants, dict(zip(names, np.exp(x), strict=True)))
        return np.concatenate([batch.misses(constants) for batch in known]) / NOISE

    found = _minimise(residuals, start, widths)
    values = {name: float(f"{value:.3g}") for name, value in zip(names, np.exp(found), strict=True)}
    calibration = Calibration(
        date=datetime.date.today(),
        data=f"{len(measured)} runs of {', '.join(dict.fromkeys(row.source for row in measured))}",
        constants=_with(prior.constants, values),
        seen=tuple(dict.fromkeys(map(digest, measured))),
        stands_for=prior.stands_for,
    )
    return calibration.model_copy(update={"fitted": _fitted(percent_errors(measured, calibration))})


def _minimise(residuals: Callable[[Any], Any], start: Any, widths: Any) -> Any:
    """Where Cauchy's loss of the residuals and the squared distance from `start`, in `widths`, are least together."""

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
            found = loss(x + step)
            if found < least:
                break
            damping *= 4
        else:
            return x
        settled = least - found < 1e-4
        x, least, damping = x + step, found, damping / 5
        if settled:
            return x
    return x


def _get(constants: Constants, name: str) -> float:
    field, _, chip = name.partition(".")
    value = getattr(constants, field)
    return float(value[chip] if chip else value)


def _with(constants: Constants, values: Mapping[str, float]) -> Constants:
    told = constants.model_dump()
    for name, value in values.items():
        field, _, chip = name.partition(".")
        if chip:
            told[field][chip] = float(value)
        else:
            told[field] = float(value)
    return Constants.model_construct(**told)


def _fitted(wrong: Sequence[float]) -> Fitted:
    sizes = np.abs(wrong)
    return Fitted(
        rows=len(wrong),
        median_abs_pct_error=round(float(np.median(sizes)), 2),
        p90_abs_pct_error=round(float(np.percentile(sizes, 90)), 2),
    )
