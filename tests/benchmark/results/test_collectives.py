"""Bandwidths of collectives, by hand."""

import pytest

from convoy.benchmark.results.collectives import (
    OPERATIONS,
    CollectiveTiming,
    Operation,
    timing_values,
    timings_from_values,
)
from convoy.stats.interval import Interval


def a_collective(operation: Operation, n_bytes: int = 10**9, ranks: int = 8, seconds: float = 0.05) -> CollectiveTiming:
    spread = Interval(estimate=seconds, low=0.9 * seconds, high=1.2 * seconds, n=7)
    return CollectiveTiming(operation=operation, bytes=n_bytes, ranks=ranks, seconds=spread)


@pytest.mark.parametrize(
    ("operation", "ranks", "busbw"),
    [
        # 1 GB in 50 ms is 20 GB/s. A sum sends each byte twice, but for a rank's own part: 2 × 7/8; a gather once.
        ("all_reduce", 8, 35e9),
        ("all_gather", 8, 17.5e9),
        ("reduce_scatter", 8, 17.5e9),
        ("all_reduce", 64, 39.375e9),
        ("all_gather", 1, 0.0),
    ],
)
def test_bus_bandwidth_is_what_a_link_carries(operation: Operation, ranks: int, busbw: float) -> None:
    found = a_collective(operation, ranks=ranks)
    assert found.algbw == pytest.approx(20e9)
    assert found.busbw == pytest.approx(busbw)


def test_a_case_keeps_them_as_values() -> None:
    kept = [a_collective(operation, n_bytes) for operation in OPERATIONS for n_bytes in (2**20, 2**24)]
    values = {name: value for each in reversed(kept) for name, value in timing_values(each).items()}
    assert values["collective.all_gather.1048576.seconds"] == 0.05
    assert list(timings_from_values(values | {"weak": 1.0}, 8)) == kept


def test_what_is_not_whole_is_passed_over() -> None:
    values = timing_values(a_collective("all_gather"))
    del values["collective.all_gather.1000000000.low"]
    assert timings_from_values(values, 8) == ()
    assert timings_from_values({"collective.all_gather.x.seconds": 1.0, "collective.all_gather.seconds": 1.0}, 8) == ()
