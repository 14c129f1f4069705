"""The model of rails: predicted times of a buffer that is split over several rails, from times over one rail. Pure.

Each rail carries its part as one rail carries a buffer of that size, all of them at the same time:

    split(S) = one(S / n) + (n - 1) · c

n is the number of rails, and c the time that the host takes for one more message. The split begins to pay where that is
less than one(S).
"""

import math
from collections.abc import Mapping
from itertools import pairwise

STEPS_PER_DOUBLING = 32
"""Sizes at which a predicted crossover is looked for."""


def seconds_at(one: Mapping[int, float], size: float) -> float:
    """Time of any size, from times by size in bytes: on straight lines between them, and on the last one beyond.

    A message that is smaller than all that were measured takes as long as the smallest: below it, the time hardly
    depends on the size. Raises ValueError for fewer than two sizes.
    """
    sizes = sorted(one)
    if len(sizes) < 2:
        raise ValueError(f"{len(sizes)} sizes: at least two are needed")
    if size <= sizes[0]:
        return one[sizes[0]]
    below, above = next(((a, b) for a, b in pairwise(sizes) if size <= b), (sizes[-2], sizes[-1]))
    return one[below] + (one[above] - one[below]) * (size - below) / (above - below)


def split_seconds(one: Mapping[int, float], size: float, rails: int, message_seconds: float = 0.0) -> float:
    """Time of a buffer that is split over all rails. one: times over one rail, by size in bytes. message_seconds: of
    one more message, on the host."""
    return seconds_at(one, size / rails) + (rails - 1) * message_seconds


def predicted_crossover(one: Mapping[int, float], rails: int, message_seconds: float) -> float | None:
    """Bytes from which the split is faster, in the range of the sizes; None: it is nowhere faster.

    The smallest size is the answer where the split is faster at all sizes.
    """
    first, last = min(one), max(one)
    steps = max(1, math.ceil(STEPS_PER_DOUBLING * math.log2(last / first)))
    sizes = [first * (last / first) ** (step / steps) for step in range(steps + 1)]
    ratios = {size: seconds_at(one, size) / split_seconds(one, size, rails, message_seconds) for size in sizes}
    return crossover(ratios)


def crossover(gains: Mapping[float, float]) -> float | None:
    """Bytes from which on all gains are above 1, between two sizes on a line through the logarithms of both.

    gains: time over one rail over the time of the split, by size in bytes. None: it is not above 1 at the largest size.
    The smallest size is the answer if all are above 1.
    """
    sizes = sorted(gains)
    if not sizes or gains[sizes[-1]] <= 1:
        return None
    at = max((i for i, size in enumerate(sizes) if gains[size] <= 1), default=None)
    if at is None:
        return float(sizes[0])
    below, above = math.log(gains[sizes[at]]), math.log(gains[sizes[at + 1]])
    share = -below / (above - below)
    return float(sizes[at] * (sizes[at + 1] / sizes[at]) ** share)
