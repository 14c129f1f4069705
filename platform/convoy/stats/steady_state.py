"""When warm-up is over: measurements that still drift are not of the state that lasts."""

import math
import statistics
from collections.abc import Sequence

WINDOW = 8
"""Measurements that are compared with as many before them."""

TOLERANCE = 0.02
"""Two windows whose medians differ by less are taken for the same, however little they vary."""

ERRORS = 2.0
"""And those whose difference is not more than so many standard errors of it."""


def is_steady(seconds: Sequence[float], window: int = WINDOW) -> bool:
    """Whether the newest `window` measurements are like the `window` before them; False for too few."""
    if len(seconds) < 2 * window:
        return False
    earlier, newest = list(seconds[-2 * window : -window]), list(seconds[-window:])
    a, b = statistics.median(earlier), statistics.median(newest)
    # 1.4826 scales a median deviation to a normal's standard deviation, 1.2533 that of a mean to that of a median.
    deviation = 1.4826 * statistics.median([abs(x - a) for x in earlier] + [abs(x - b) for x in newest])
    error = 1.2533 * deviation * math.sqrt(2 / window)
    return abs(b - a) <= max(TOLERANCE * a, ERRORS * error)
