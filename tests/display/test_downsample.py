"""Fewer points, the same curve."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.display.charts import Point, downsample, finite

curves = st.lists(st.floats(-1e6, 1e6), max_size=2000).map(lambda ys: [(float(x), y) for x, y in enumerate(ys)])


@given(curves, st.integers(4, 50))
def test_the_limit_holds_and_ends_and_extremes_survive_in_order(points: list[Point], limit: int) -> None:
    kept = downsample(points, limit)
    assert len(kept) <= limit
    assert set(kept) <= set(points)
    assert [x for x, _ in kept] == sorted({x for x, _ in kept})
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
        assert min(y for _, y in kept) == min(y for _, y in points)
        assert max(y for _, y in kept) == max(y for _, y in points)


def test_a_short_curve_is_left_as_it_is() -> None:
    points = [(1.0, 2.0), (2.0, 1.0)]
    assert downsample(points) == points
    assert downsample([]) == []


def test_a_spike_of_one_step_among_a_hundred_thousand_survives() -> None:
    points = [(float(i), 9.0 if i == 54_321 else 1.0) for i in range(100_000)]
    kept = downsample(points, 300)
    assert (54_321.0, 9.0) in kept
    assert len(kept) <= 300


def test_a_limit_too_small_for_ends_and_extremes_is_refused() -> None:
    with pytest.raises(ValueError, match="limit = 3: must be at least 4"):
        downsample([], 3)


def test_only_finite_values_can_be_drawn() -> None:
    assert finite([(1, 2.0), (2, float("nan")), (3, float("-inf"))]) == [(1, 2.0)]
