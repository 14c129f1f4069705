"""A straight line through two measured times."""

RESOLVED = 0.05
"""Share of the larger size's seconds that its slope makes up at least: less cannot be told from what disturbs a clock,
and with none at all still larger sizes would take no time."""


def time_line(small: tuple[float, float], large: tuple[float, float]) -> tuple[float, float]:
    """Start and slope of the line through (size, seconds) of two sizes.

    The larger one, which is as large as what is asked for, is on it, however the smaller one was disturbed. The start
    is never below 0, and no more than either time; the slope never below RESOLVED of the larger one's rate. Both follow
    the times without a jump. Raises ValueError for sizes that do not grow, or a time that is not above 0.
    """
    (size, seconds), (largest, most) = small, large
    if not 0 <= size < largest or min(seconds, most) <= 0:
        raise ValueError(f"{[small, large]}: must be times above 0 of two sizes, the smaller one first")
    rise = (most - seconds) / (largest - size) * largest
    share = min(max(rise, RESOLVED * most), most)
    return most - share, share / largest
