"""A line through times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.training.measure.collectives import RESOLVED, time_line

SECONDS = st.floats(1e-6, 10.0)
LARGER = st.floats(1.5, 1e6)
"""Times the smaller size."""


@given(share=st.floats(0, 15), slope=st.floats(1e-12, 1e-6), size=st.floats(1, 1e6), larger=LARGER)
def test_points_on_a_line_give_that_line(share: float, slope: float, size: float, larger: float) -> None:
    """share: of the start, of what the larger size takes by the slope."""
    start = share * slope * size * larger
    found, each = time_line((size, start + slope * size), (size * larger, start + slope * size * larger))
    assert found == pytest.approx(start, rel=1e-6, abs=1e-6 * slope * size * larger)
    assert each == pytest.approx(slope, rel=1e-6)


@given(small=SECONDS, large=SECONDS, size=st.floats(1, 1e6), larger=LARGER)
def test_the_larger_size_takes_what_it_took_and_nothing_is_below_nothing_or_for_nothing(
    small: float, large: float, size: float, larger: float
) -> None:
    """A collective of a block must never be infinitely fast, however a small one was disturbed."""
    start, slope = time_line((size, small), (size * larger, large))
    assert start + slope * size * larger == pytest.approx(large)
    assert 0 <= start <= min(small, large) * (1 + 1e-9)
    assert slope * size * larger >= RESOLVED * large * (1 - 1e-9)


@given(small=SECONDS, large=SECONDS, larger=LARGER, change=st.floats(-0.01, 0.01))
def test_what_is_a_little_longer_moves_the_line_a_little(
    small: float, large: float, larger: float, change: float
) -> None:
    """Also where its slope can no longer be told, and where its start comes to nothing."""
    start, slope = time_line((1.0, small), (larger, large))
    for other, most in ((small * (1 + change), large), (small, large * (1 + change))):
        moved, each = time_line((1.0, other), (larger, most))
        most_moved = abs(change) * max(small, large) * larger / (larger - 1) * 1.01 + 1e-12
        assert abs(moved - start) <= 2 * most_moved
        assert abs(each - slope) * larger <= 2 * most_moved


@pytest.mark.parametrize("seconds", [0.5, 0.9499, 0.95, 0.9501, 1.0, 2.0])
def test_times_about_the_least_slope_are_about_one_line(seconds: float) -> None:
    start, _ = time_line((0.0, seconds), (1000.0, 1.0))
    assert start == pytest.approx(min(seconds, 1 - RESOLVED))


@pytest.mark.parametrize(
    "points", [((1.0, 1.0), (1.0, 2.0)), ((2.0, 1.0), (1.0, 2.0)), ((1.0, 0.0), (2.0, 1.0)), ((1.0, 1.0), (2.0, 0.0))]
)
def test_no_line_is_made_of_one_size_or_of_no_time(points: tuple[tuple[float, float], tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="must be times above 0 of two sizes, the smaller one first"):
        time_line(*points)
