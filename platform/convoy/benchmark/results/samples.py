"""Names of `Case.samples`, and their medians.

docs/reference/benchmark-results.md has them all.
"""

import statistics
from collections.abc import Sequence

from convoy.benchmark.results.case import Case, Fact
from convoy.stats.interval import FEWEST, interval

STALL = "stall_seconds"
"""Suite checkpoint, as the next three. For which training waits for one save: the call that begins it, and the update
that waits for the copy; the slowest rank's. Without the first save, which starts what writes."""

DURABLE = "durable_seconds"
"""From the beginning of a save to its commit, written beside steps at the configured pace."""

SAVE = "save_seconds"
"""The same with nothing else going on, as fast as the storage takes it, of `rest_bytes`."""

RESTORE = "restore_seconds"
"""Until all ranks have that back, read from the storage and checked."""

DETECTED = "detected_seconds"
"""Suite recovery, as the next two. From the fault until the gang knows of it."""

RECOVERED = "recovered_seconds"
"""From the fault until the first step of the gang that replaces the stopped one."""

BEYOND = "beyond_seconds"
"""From the fault until the first step that was not done before."""


class SampleMedian(Fact):
    """Independent measurements of one thing."""

    n: int
    median: float
    low: float
    """Lower bound of the median's 95 % interval, where there are enough for one; else the least."""
    high: float
    is_interval: bool


def sample(values: Sequence[float]) -> SampleMedian | None:
    """Their median and its bounds; None: there are none."""
    if not values:
        return None
    if len(values) < FEWEST:
        return SampleMedian(
            n=len(values), median=statistics.median(values), low=min(values), high=max(values), is_interval=False
        )
    estimate = interval(values)
    return SampleMedian(n=estimate.n, median=estimate.estimate, low=estimate.low, high=estimate.high, is_interval=True)


def sample_of(case: Case, name: str) -> SampleMedian | None:
    """A sample of a case; None: it was not measured."""
    return sample(case.samples.get(name, ()))
