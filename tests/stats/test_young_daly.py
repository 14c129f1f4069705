"""Daly's formulas."""

import math

import pytest

from convoy.stats.interruptions import best_interval, expected_overhead


def test_the_interval_of_a_short_save_is_young_s() -> None:
    assert best_interval(0.5, 86400.0) == pytest.approx(math.sqrt(2 * 0.5 * 86400.0), rel=0.01)


def test_figures_that_were_computed_by_hand() -> None:
    # C = 60 s, M = 1 h: sqrt(432000) = 657.27; x = 1/120, 657.27 (1 + 0.09129/3 + 0.00093) - 60
    assert best_interval(60.0, 3600.0) == pytest.approx(617.88, abs=0.05)
    # 3600/600 exp(1/60) (exp(660/3600) - 1) - 1
    assert expected_overhead(600.0, 60.0, 60.0, 3600.0) == pytest.approx(0.22764, abs=1e-4)


@pytest.mark.parametrize(("save", "mtbf"), [(0.1, 3600.0), (18.0, 3600.0), (600.0, 7200.0)])
def test_no_other_interval_loses_less(save: float, mtbf: float) -> None:
    best = best_interval(save, mtbf)
    least = expected_overhead(best, save, 30.0, mtbf)
    others = [expected_overhead(best * factor, save, 30.0, mtbf) for factor in (0.5, 0.8, 1.25, 2.0)]
    assert all(least < other for other in others)


def test_for_rare_failures_it_is_the_sum_of_saves_lost_work_and_restarts() -> None:
    interval, save, restart, mtbf = 300.0, 1.0, 30.0, 1e6
    first_order = save / interval + interval / (2 * mtbf) + restart / mtbf
    assert expected_overhead(interval, save, restart, mtbf) == pytest.approx(first_order, rel=0.01)


def test_saves_longer_than_the_time_between_failures_come_that_often() -> None:
    assert best_interval(100.0, 40.0) == 40.0


def test_work_that_never_ends_has_an_infinite_overhead() -> None:
    assert expected_overhead(1e9, 1.0, 1.0, 1.0) == math.inf


def test_what_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="more than zero"):
        best_interval(0.0, 3600.0)
    with pytest.raises(ValueError, match="more than zero"):
        expected_overhead(0.0, 1.0, 1.0, 3600.0)
