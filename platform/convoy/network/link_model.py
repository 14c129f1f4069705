"""The α–β model: latency and bandwidth of a link or a collective, fitted to times at several message sizes. Pure.

time = α + bytes / β. n½ = α · β is the size at which half of the bandwidth is reached (Hockney 1994).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from convoy.stats.interval import FEWEST, Interval, interval

FEWEST_SIZES = 3


class LinkModel(BaseModel):
    """Latency and bandwidth of a link or a collective, each with its interval."""

    model_config = ConfigDict(frozen=True)

    alpha: Interval
    """Latency in seconds; never below 0."""
    beta: Interval
    """Bandwidth in bytes per second."""

    @property
    def half_size(self) -> float:
        """n½: the message size in bytes at which half of the bandwidth is reached."""
        return self.alpha.estimate * self.beta.estimate

    def seconds(self, size: float) -> float:
        """Time of a message of `size` bytes, in seconds."""
        return self.alpha.estimate + size / self.beta.estimate


def fit_link(times: Mapping[int, Sequence[float]]) -> LinkModel | None:
    """Fit the model to times by least squares of relative errors. times: seconds of each round, by size in bytes.

    Each round is fitted separately, so that the intervals are those of independent measurements. None: there are fewer
    than FEWEST_SIZES sizes or FEWEST rounds, or times do not grow with the size.
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
    """Latency in seconds and seconds per byte, by least squares of relative errors. times: seconds by size in bytes."""
    sizes, seconds = np.array(list(times), dtype=float), np.array(list(times.values()))
    ones = np.ones_like(sizes)
    start, slope = np.linalg.lstsq(np.stack([ones, sizes], axis=1) / seconds[:, None], ones, rcond=None)[0]
    if start < 0:  # no latency is below zero: the line through the origin
        start, slope = 0.0, float(np.sum(sizes / seconds) / np.sum((sizes / seconds) ** 2))
    return float(start), float(slope)
