"""Whether a rank's machine is fit to train, by what all ranks measured alike before the first step. Pure.

Ranks on a shared machine are never equally fast, and a gang that does not start for noise is worse than one that starts
on a slow node, which is told of later (`stragglers.py`). So only who is clearly out is unfit, in two rounds.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MATMUL_FACTOR = {"cpu": 2.5, "cuda": 1.3}
"""Times as slow as the median of the others. Cores of one kind differ by what else runs on their machine; GPUs of one
kind do the same work within some percent, unless one is throttled."""

LINK_FACTOR = 5.0
LINK_LEAST_SECONDS = 0.01
"""An exchange over the network counts as slow if it takes so many times as long as the others', and so much longer."""

DEVIATIONS = 3.5
"""And by so many standard deviations, estimated from the median absolute deviation of the others, so that one bad rank
does not hide itself. Source: Iglewicz and Hoaglin, "How to Detect and Handle Outliers", ASQC 1993."""

LEAST_DEVIATION = 0.05
"""Of the median: a smaller one is chance, where there are few ranks."""

_SIGMA_OVER_MAD = 1.4826
"""Of the normal distribution."""


@dataclass(frozen=True)
class Measured:
    """Of one rank; seconds are the best of several, 0: not measured."""

    device: str
    """What computes. Ranks with another one are not compared."""
    kind: str
    """cpu or cuda."""
    matmul_seconds: float
    link_seconds: float
    """Of an exchange with a neighbour, the better of two: see `partner`."""


def unfit(measured: Sequence[Measured]) -> dict[int, str]:
    """The ranks whose machine is not fit, and why, in one line each. measured: by rank."""
    found: dict[int, str] = {}
    for rank, own in enumerate(measured):
        others = [other for i, other in enumerate(measured) if i != rank and other.device == own.device]
        matmul = _times(own.matmul_seconds, [o.matmul_seconds for o in others], MATMUL_FACTOR[own.kind])
        link = _times(own.link_seconds, [o.link_seconds for o in others], LINK_FACTOR, LINK_LEAST_SECONDS)
        if matmul is not None:
            found[rank] = f"a matrix product takes {matmul:.1f} times as long as on the other ranks"
        elif link is not None:
            found[rank] = f"an exchange with either neighbour takes {link:.1f} times as long as between the others"
    return found


ROUNDS = 3
"""In each, ranks that stand in a ring are paired with a neighbour, as far as they have one that is free."""


def partner(position: int, size: int, round_: int) -> int | None:
    """The position of the neighbour in a ring with whom to exchange in this round; None: with nobody.

    In all rounds together each pair of neighbours meets once. So a rank with a bad link has two bad exchanges, and its
    neighbours have one. size: at least 3.
    """
    odd = size % 2 == 1
    match round_:
        case 0:
            other = position + 1 if position % 2 == 0 else position - 1
        case 1:
            other = position + 1 if position % 2 == 1 else position - 1
            if not odd:
                other %= size
        case _:
            other = {0: size - 1, size - 1: 0}.get(position, -1) if odd else -1
    return other if 0 <= other < size else None


def _times(own: float, others: Sequence[float], factor: float, least_seconds: float = 0.0) -> float | None:
    """How many times as long as the others' median it is, if it is clearly out; else None."""
    known = [seconds for seconds in others if seconds > 0]
    if not known or own <= 0:
        return None
    median = statistics.median(known)
    deviation = _SIGMA_OVER_MAD * statistics.median(abs(seconds - median) for seconds in known)
    beyond = own - median
    clear = beyond > DEVIATIONS * max(deviation, LEAST_DEVIATION * median) and beyond > least_seconds
    return own / median if clear and own > factor * median else None
