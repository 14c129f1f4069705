"""A straight line through measured times."""

from collections.abc import Sequence

RESOLVED = 0.05
"""Share of the largest size's seconds that its slope must make up: less cannot be told from what disturbs a clock."""


def time_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Start and slope of the line through (size, seconds) with the least squares of relative errors; none is below 0.

    Where the times tell no slope, it is that from nothing to the largest size, and the start is 0: that may be too
    slow for larger sizes, and is never infinitely fast.

    Relative, because a clock and its disturbances err in proportion: by plain squares the largest size alone would
    decide. Raises ValueError for fewer than two sizes, or a time that is not above 0.
    """
    if len({size for size, _ in points}) < 2 or any(seconds <= 0 for _, seconds in points):
        raise ValueError(f"{list(points)}: must be times above 0 of at least two sizes")
    weights = [seconds**-2 for _, seconds in points]
    total = sum(weights)
    x = sum(w * size for w, (size, _) in zip(weights, points, strict=True)) / total
    y = sum(w * seconds for w, (_, seconds) in zip(weights, points, strict=True)) / total
    covered = sum(w * (size - x) ** 2 for w, (size, _) in zip(weights, points, strict=True))
    slope = sum(w * (size - x) * (s - y) for w, (size, s) in zip(weights, points, strict=True)) / covered
    largest, most = max(points)
    if slope * largest < RESOLVED * most:
        return 0.0, most / largest
    if y - slope * x < 0:  # the best line through nothing
        slope = sum(w * size * s for w, (size, s) in zip(weights, points, strict=True)) / sum(
            w * size**2 for w, (size, _) in zip(weights, points, strict=True)
        )
        return 0.0, slope
    return y - slope * x, slope
