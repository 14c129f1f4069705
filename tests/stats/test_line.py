"""A line through times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.stats.line import RESOLVED, time_line


@given(share=st.floats(0, 10), slope=st.floats(1e-12, 1e-6), sizes=st.lists(st.floats(1, 1e9), min_size=2, unique=True))
def test_points_on_a_line_give_that_line(share: float, slope: float, sizes: list[float]) -> None:
    """share: of the start, of what the largest size takes."""
    start = share * slope * max(sizes)
    points = [(size, start + slope * size) for size in sizes]
    found, each = time_line(points)
    for size, seconds in points:
        assert found + each * size == pytest.approx(seconds, rel=1e-3)


def test_errors_count_by_their_share() -> None:
    start, slope = time_line([(1.0, 1.0), (2.0, 2.0), (1000.0, 1500.0)])
    assert start + slope == pytest.approx(1.0, rel=0.2)


def test_neither_start_nor_slope_is_below_nothing() -> None:
    assert time_line([(1.0, 1.0), (10.0, 20.0)])[0] == 0.0


@given(small=st.floats(1.0, 2.0), large=st.floats(0.1, 1.0))
def test_where_no_slope_is_to_be_seen_the_largest_size_has_a_rate_of_its_own(small: float, large: float) -> None:
    """A collective of a block must never be infinitely fast, however a small one was disturbed."""
    assert time_line([(64.0, small), (1000.0, large)]) == (0.0, large / 1000)


def test_a_slope_within_the_clock_s_errors_is_none() -> None:
    assert time_line([(64.0, 1.0), (1000.0, 1.0 + RESOLVED / 2)])[0] == 0.0
    assert time_line([(64.0, 1.0), (1000.0, 1.0 + 2 * RESOLVED)])[0] > 0.9


@pytest.mark.parametrize("points", [[], [(1.0, 1.0)], [(1.0, 1.0), (1.0, 2.0)], [(1.0, 0.0), (2.0, 1.0)]])
def test_no_line_is_made_of_less_than_two_sizes_or_of_no_time(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="must be times above 0 of at least two sizes"):
        time_line(points)
