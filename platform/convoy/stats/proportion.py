"""How often something happened: k of n times."""

import math
from statistics import NormalDist

from convoy.stats.interval import CONFIDENCE, Interval


def proportion(k: int, n: int) -> Interval:
    """k of n, with Wilson's score interval, which holds for few trials and for all or none of them (Wilson 1927, JASA
    22). Raises ValueError unless 0 <= k <= n and n > 0."""
    if not 0 <= k <= n or n == 0:
        raise ValueError(f"{k} of {n}: must be a part of at least one trial")
    z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2)
    share = k / n
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    # Rounding must not put a share of 0 or 1 outside.
    low, high = (0.0 if k == 0 else middle - half), (1.0 if k == n else middle + half)
    return Interval(estimate=share, low=low, high=high, n=n)
