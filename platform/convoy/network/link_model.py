"""Latency and bandwidth of a link or a collective, from times at several sizes: the α–β model. Pure.

time = α + bytes / β. n½ = α · β is the size at which half of the bandwidth is reached (Hockney 1994).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from convoy.stats.interval import FEWEST, Interval, interval

FEWEST_SIZES = 3


class LinkModel(BaseModel):
    """A line through times by size."""

    model_config = ConfigDict(frozen=True)

    alpha: Interval
    """Latency in seconds; never below 0."""
    beta: Interval
    """Bytes per second."""

    @property
    def half_size(self) -> float:
        """n½ in bytes."""
        return self.alpha.estimate * self.beta.estimate

    def seconds(self, size: float) -> float:
        """Of so many bytes."""
        return self.alpha.estimate + size / self.beta.estimate


def fit_link(times: Mapping[int, Sequence[float]]) -> LinkModel | None:
    """The line that is nearest to the times, by relative error; times: seconds of each round, by size in bytes.

    Each round has a line of its own, so that the intervals are those of independent measurements. None: there are too
    few sizes or rounds, or times do not grow with the size.
    """
    rounds = min(map(len, times.values()), default=0)
    if len(times) < FEWEST_SIZES or rounds < FEWEST:
        return None
    lines = [_fit_line({size: of_size[i] for size, of_size in times.items()}) for i in range(rounds)]
    if any(slope <= 0 for _, slope in lines):
        return None
    return LinkModel(
        alpha=interval([max(0.0, start) for start, _ in lines]), beta=interval([1 / slope for _, slope in lines])
    )


def _fit_line(times: Mapping[int, float]) -> tuple[float, float]:
    """Start and slope, by least squares of relative errors."""
    sizes, seconds = np.array(list(times), dtype=float), np.array(list(times.values()))
    ones = np.ones_like(sizes)
    start, slope = np.linalg.lstsq(np.stack([ones, sizes], axis=1) / seconds[:, None], ones, rcond=None)[0]
    if start < 0:  # no latency is below zero: the line through the origin
        start, slope = 0.0, float(np.sum(sizes / seconds) / np.sum((sizes / seconds) ** 2))
    return float(start), float(slope)
