"""How fast ranks exchange bytes: each collective that was measured, by size, and its bandwidths. Pure.

A case keeps them among its values as `collective.OPERATION.BYTES.FIGURE`, of the figures seconds, low, high and n. A
case of several gangs has samples instead, `collective.OPERATION.BYTES`: the seconds in each gang.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from convoy.benchmark.results.case import FrozenResult
from convoy.network.bandwidth import bus_factor
from convoy.stats.interval import Interval

Operation = Literal["all_gather", "reduce_scatter", "all_reduce"]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)

PREFIX = "collective."


class CollectiveTiming(FrozenResult):
    """One operation on one size."""

    operation: Operation
    bytes: int
    """Of the whole tensor that is gathered or reduced, as in the column `size` of nccl-tests."""
    ranks: int
    seconds: Interval
    """The slowest rank's."""

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth, bytes per second."""
        return self.bytes / self.seconds.estimate

    @property
    def busbw(self) -> float:
        """Bus bandwidth, bytes per second: what each rank's link carries in each direction where it does no more than
        it must, so that it can be compared with the link's own rate, on any number of ranks.

        Source: nccl-tests, doc/PERFORMANCE.md.
        """
        return self.algbw * bus_factor(self.operation, self.ranks)


def timing_values(collective: CollectiveTiming) -> dict[str, float]:
    """As a case has it among its values."""
    stem, seconds = f"{PREFIX}{collective.operation}.{collective.bytes}", collective.seconds
    return {
        f"{stem}.seconds": seconds.estimate,
        f"{stem}.low": seconds.low,
        f"{stem}.high": seconds.high,
        f"{stem}.n": float(seconds.n),
    }


def timings_from_values(values: Mapping[str, float], ranks: int) -> tuple[CollectiveTiming, ...]:
    """The collectives of a case of so many ranks, by operation, from small to large. Incomplete ones are ignored."""
    collectives = []
    for operation in OPERATIONS:
        stem = f"{PREFIX}{operation}."
        names = [name.split(".") for name in values if name.startswith(stem) and name.endswith(".seconds")]
        for n_bytes in sorted(int(name[2]) for name in names if len(name) == 4 and name[2].isdecimal()):
            figures = [values.get(f"{stem}{n_bytes}.{figure}") for figure in ("seconds", "low", "high", "n")]
            if n_bytes and all(figures):
                estimate, low, high, n = (value or 0.0 for value in figures)
                seconds = Interval(estimate=estimate, low=low, high=high, n=int(n))
                collectives.append(CollectiveTiming(operation=operation, bytes=n_bytes, ranks=ranks, seconds=seconds))
    return tuple(collectives)


def sample_name(collective: CollectiveTiming) -> str:
    """Its name among the samples of a case of several gangs."""
    return f"{PREFIX}{collective.operation}.{collective.bytes}"


def operations_of_samples(samples: Iterable[str]) -> dict[str, tuple[Operation, int]]:
    """Operation and bytes of each name that `sample_name` gives, by operation, from small to large."""
    named = {f"{PREFIX}{operation}": operation for operation in OPERATIONS}
    found: list[tuple[int, int, str]] = []
    for name in samples:
        stem, _, size = name.rpartition(".")
        if stem in named and size.isdecimal():
            found.append((OPERATIONS.index(named[stem]), int(size), name))
    return {name: (OPERATIONS[operation], size) for operation, size, name in sorted(found)}
