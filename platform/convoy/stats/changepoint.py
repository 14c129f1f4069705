"""Where a history of runs changed, how small a change it could have shown, and whether measurements still drift.

Runs of one fingerprint, oldest first, are cut where the evidence is strongest that the mean of their logarithms differs
on either side. Whether that is chance is decided by the same search in the same runs in random order, as they are if
nothing changed: the share of such orders that give as much evidence is the p-value, over all cuts together. A recent
change has few runs to show itself and an old one many: the cuts share the risk of a false alarm so that recent ones get
more of it.
"""

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from pydantic import BaseModel, ConfigDict

MIN_BEFORE = 10
"""Runs that show what was usual, and how it varies."""

MIN_AFTER = 4
"""Runs that show a change: among fewer, one bad run looks like one."""

ALPHA = 0.04
"""How often a history in which nothing changed shows a change."""

POWER = 0.9
"""How surely the smallest detectable change is detected."""

ORDERS = 4000
"""Random orders of a history."""

FLAT = 1e-9
"""Relative differences that are rounding, not noise of a measurement."""

WINDOW = 8
"""Measurements that are compared with as many before them."""

TOLERANCE = 0.02
"""Two windows whose medians differ by less count as equal, however little they vary."""

ERRORS = 2.0
"""And those whose difference is not more than so many of its standard errors."""


class ChangePoint(BaseModel):
    """A change between two runs of a history."""

    model_config = ConfigDict(frozen=True)

    at: int
    """Index of the first run after it."""
    effect: float
    """Geometric mean since, over the one before, minus 1."""
    p_value: float
    before: int
    """Runs on each side that were compared."""
    after: int


def change_points(values: Sequence[float], seed: int = 0) -> list[ChangePoint]:
    """All changes of a history of positive values, oldest first; either side of one is searched for further ones. Empty
    for fewer than MIN_BEFORE + MIN_AFTER runs. Raises ValueError for a value that is not positive.
    """
    logs = _checked_logs(values)
    cuts = _binary_segmentation(logs, 0, seed)
    edges = [0, *(change.at for change in cuts), len(logs)]
    means = [float(logs[a:b].mean()) for a, b in pairwise(edges)]
    # Further changes on either side narrow what a change is compared with: only the runs next to it count.
    return [
        change.model_copy(
            update={
                "effect": math.expm1(means[i + 1] - means[i]),
                "before": edges[i + 1] - edges[i],
                "after": edges[i + 2] - edges[i + 1],
            }
        )
        for i, change in enumerate(cuts)
    ]


def detectable_change(values: Sequence[float], seed: int = 0) -> float | None:
    """The smallest relative change, up or down, which the last MIN_AFTER runs would have shown in POWER of all
    cases, from the number of runs since the last change and how they vary; None: too few. Raises ValueError as
    `change_points` does.

    (c + z sqrt(1 + c^2 / 2f)) s sqrt(1/n + 1/m), from the normal approximation of the noncentral t with f degrees of
    freedom (Johnson and Welch 1940, Biometrika 31): c is the |t| whose evidence is that which chance exceeds in ALPHA
    of all orders, z the normal quantile of POWER, s the standard deviation since the last change.
    """
    logs = _checked_logs(values)
    if len(logs) < MIN_BEFORE + MIN_AFTER:
        return None
    since = max((change.at for change in _binary_segmentation(logs, 0, seed)), default=0)
    logs = logs[since:]  # another change would be searched for in these alone
    if len(logs) < MIN_BEFORE + MIN_AFTER:
        return None
    rest = logs - logs.mean()
    if _is_flat(rest):
        return 0.0
    deviation = math.sqrt(float((rest**2).sum()) / (len(logs) - 1))
    evidence = float(np.quantile(_chance_evidence(rest, seed), 1 - ALPHA))
    threshold = math.sqrt((len(logs) - 2) * math.expm1(evidence / len(logs)))  # the |t| that has it
    error = deviation * math.sqrt(1 / (len(logs) - MIN_AFTER) + 1 / MIN_AFTER)
    uncertain = math.sqrt(1 + threshold**2 / (2 * (len(logs) - 2)))
    return math.expm1((threshold + NormalDist().inv_cdf(POWER) * uncertain) * error)


def is_steady(seconds: Sequence[float], window: int = WINDOW) -> bool:
    """Whether warm-up is over: the newest `window` values are like the `window` before them; False for too few."""
    if len(seconds) < 2 * window:
        return False
    earlier, newest = list(seconds[-2 * window : -window]), list(seconds[-window:])
    a, b = statistics.median(earlier), statistics.median(newest)
    # 1.4826 scales a median deviation to a normal's standard deviation, 1.2533 that of a mean to that of a median.
    deviation = 1.4826 * statistics.median([abs(x - a) for x in earlier] + [abs(x - b) for x in newest])
    error = 1.2533 * deviation * math.sqrt(2 / window)
    return abs(b - a) <= max(TOLERANCE * a, ERRORS * error)


def _binary_segmentation(logs: np.ndarray, offset: int, seed: int) -> list[ChangePoint]:
    change = _strongest_change(logs, offset, seed)
    if change is None:
        return []
    cut = change.at - offset
    return [*_binary_segmentation(logs[:cut], offset, seed), change, *_binary_segmentation(logs[cut:], change.at, seed)]


def _strongest_change(logs: np.ndarray, offset: int, seed: int) -> ChangePoint | None:
    n = len(logs)
    if n < MIN_BEFORE + MIN_AFTER or _is_flat(logs):
        return None
    observed = _evidence(logs[None])[0]
    best = int(np.argmax(observed))
    p_value = (1 + int((_chance_evidence(logs, seed) >= observed[best]).sum())) / (1 + ORDERS)
    if p_value > ALPHA:
        return None
    cut = MIN_BEFORE + best
    effect = math.expm1(float(logs[cut:].mean() - logs[:cut].mean()))
    return ChangePoint(at=offset + cut, effect=effect, p_value=p_value, before=cut, after=n - cut)


def _chance_evidence(logs: np.ndarray, seed: int) -> np.ndarray:
    """The strongest evidence (ORDERS,) in the runs in random orders."""
    orders = np.random.default_rng(seed).permuted(np.tile(logs, (ORDERS, 1)), axis=1)
    return np.asarray(_evidence(orders).max(axis=1))


def _evidence(logs_on: np.ndarray) -> np.ndarray:
    """For each order and each cut: twice the log of the likelihood ratio, n log(1 + t^2 / (n - 2)), less 2 log of how
    many cuts are as recent."""
    n = logs_on.shape[1]
    before_k = np.arange(MIN_BEFORE, n - MIN_AFTER + 1)
    after_k = n - before_k
    centred = logs_on - logs_on.mean(axis=1, keepdims=True)
    sums_on = np.cumsum(centred, axis=1)[:, before_k - 1]  # those after it have the opposite sum
    total_o = (centred**2).sum(axis=1, keepdims=True)
    between = sums_on**2 * (1 / before_k + 1 / after_k)
    within = np.maximum(total_o - between, 1e-12 * total_o) / (n - 2)
    return np.asarray(n * np.log1p(between / within / (n - 2)) - 2 * np.log(after_k - MIN_AFTER + 1))


def _is_flat(logs: np.ndarray) -> bool:
    """Whether all are equal but for rounding."""
    return float(np.ptp(logs)) < FLAT


def _checked_logs(values: Sequence[float]) -> np.ndarray:
    history = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(history) & (history > 0)).all():
        raise ValueError("every value of a history must be finite and more than zero")
    return np.asarray(np.log(history))
