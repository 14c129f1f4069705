"""The arithmetic of rails, against a published table and against links that are made up."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.catalog.rails import published_rails
from convoy.network.rails.model import crossover, predicted_crossover, seconds_at, split_seconds

SIZES = [2**power for power in range(10, 25, 2)]


def line(latency: float, rate: float) -> dict[int, float]:
    return {size: latency + size / rate for size in SIZES}


def test_libefaxx_split_column_follows_from_its_single_one() -> None:
    table = published_rails()
    one = {row.bytes: row.one for row in table.microseconds}
    errors = [
        abs(split_seconds(one, row.bytes, table.rails) / row.split - 1)  # no cost of a message is published
        for row in table.microseconds
    ]
    assert len(errors) == 13
    assert statistics.median(errors) <= 0.08
    assert max(errors) <= 0.25


def test_the_published_rates_are_those_of_its_times() -> None:
    table = published_rails()
    largest = table.microseconds[-1]
    gbps = {name: 8e-3 * largest.bytes / getattr(largest, name) for name in ("one", "split", "round_robin")}
    assert gbps["one"] == pytest.approx(97.71, rel=1e-3)
    assert gbps["split"] == pytest.approx(380.00, rel=1e-3)
    assert table.round_robin_targets * gbps["round_robin"] == pytest.approx(288.58, rel=1e-3)
    assert all(row.one > 8e-3 * row.bytes / table.gbps_per_rail for row in table.microseconds)


@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e11), st.integers(2, 8))
def test_a_split_has_the_time_of_its_part(latency: float, rate: float, rails: int) -> None:
    one = line(latency, rate)
    assert split_seconds(one, 2**24, rails) == pytest.approx(latency + 2**24 / rails / rate)
    assert split_seconds(one, 2**24, rails, 1e-4) == pytest.approx(latency + 2**24 / rails / rate + (rails - 1) * 1e-4)


@given(st.floats(1e-5, 1e-3), st.integers(2, 8))
def test_the_predicted_crossover_is_where_the_cost_of_messages_is_saved(cost: float, rails: int) -> None:
    # S / rate - S / n / rate = (n - 1) c: S = n c rate. Both S and S / n are in the range of the sizes.
    rate = 1e9
    expected = rails * cost * rate
    found = predicted_crossover(line(1e-4, rate), rails, cost)
    if expected > SIZES[-1]:
        assert found is None
    elif expected / rails > SIZES[0]:
        assert found == pytest.approx(expected, rel=0.03)


def test_times_between_sizes_are_on_a_line_and_below_the_smallest_do_not_fall() -> None:
    one = {1000: 10.0, 2000: 12.0, 4000: 20.0}
    assert [seconds_at(one, size) for size in (1, 1000, 1500, 3000, 6000)] == [10, 10, 11, 16, 28]
    with pytest.raises(ValueError, match="1 sizes: at least two"):
        seconds_at({8: 1.0}, 8)


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ({1024: 0.5, 4096: 2.0}, 2048.0),
        ({1024: 0.5, 4096: 1.0, 16384: 1.5}, 4096.0),
        ({1024: 1.2, 4096: 0.9, 16384: 1.5}, 4096 * 4 ** (0.10536 / (0.10536 + 0.40547))),
        ({1024: 1.1, 4096: 1.5}, 1024.0),
        ({1024: 0.5, 4096: 0.9}, None),
        ({}, None),
    ],
)
def test_a_crossover_is_where_all_larger_sizes_gain(gains: dict[float, float], expected: float | None) -> None:
    assert crossover(gains) == (expected if expected is None else pytest.approx(expected, rel=1e-3))
