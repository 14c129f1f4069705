"""What interruptions take in the long run, against Daly's formulas and figures worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.stats.interruptions import InterruptionKind, LongRunShares, best_interval, long_run_shares
from tests.campaign import examples

pytestmark = pytest.mark.campaign

HOUR = 3600.0


def daly(interval: float, save: float, restart: float, mtbf: float) -> float:
    """Wall time beyond the work, over the work (Daly 2006, equation 20)."""
    return mtbf / interval * math.exp(restart / mtbf) * math.expm1((interval + save) / mtbf) - 1


def overhead(found: LongRunShares) -> float:
    return 1 / found.productive - 1


@pytest.mark.parametrize(("interval", "save", "restart", "lag"), [(85.0, 1.0, 105.0, 0.0), (600.0, 60.0, 60.0, 90.0)])
def test_without_notice_it_is_daly_s_formula(interval: float, save: float, restart: float, lag: float) -> None:
    after = (restart / 3, 2 * restart / 3)
    found = long_run_shares(interval, save, HOUR, (InterruptionKind(1.0, False, after),), after, lag)
    assert overhead(found) == pytest.approx(daly(interval, save, restart + lag, HOUR), rel=1e-9)


def test_rare_interruptions_cost_what_each_of_them_costs() -> None:
    """One in 10^6 s. Half of them drain for 10 s; half lose half an interval and 20 s before a save counts; all are
    followed by 30 s, and a save of 1 s comes each 400 s."""
    kinds = (InterruptionKind(0.5, False, (0.0, 30.0)), InterruptionKind(0.5, True, (10.0, 30.0)))
    found = long_run_shares(400.0, 1.0, 1e6, kinds, (0.0, 30.0), lag_seconds=20.0)
    assert found.stalled / found.productive == pytest.approx(1 / 400, rel=0.01)
    assert found.recomputed == pytest.approx(0.5 * (200 + 20) / 1e6, rel=0.01)
    assert found.down == pytest.approx((5 / 1e6, 30 / 1e6), rel=0.01)


def test_who_is_interrupted_beside_a_save_loses_the_interval_before_it() -> None:
    """A save each 1,001 s; for 51 s of it notices are too short, the first of which it stands still."""
    after = (0.0,)
    found = long_run_shares(1000.0, 1.0, 1e6, (InterruptionKind(1.0, True, after, exposed_seconds=51.0),), after)
    assert found.recomputed == pytest.approx(51 / 1001 * (1000 + 50 / 2) / 1e6, rel=0.01)


def test_without_interruptions_only_saves_cost() -> None:
    found = long_run_shares(99.0, 1.0, math.inf, (InterruptionKind(1.0, False, (5.0, 6.0)),), (5.0, 6.0))
    assert found == LongRunShares(0.99, 0.01, 0.0, (0.0, 0.0), 1.0)


SECONDS = st.floats(0.0, 1e4)


@given(
    interval=st.floats(1.0, 1e5), save=SECONDS, mtbf=st.floats(100.0, 1e12), announced=st.floats(0, 1),
    drain=SECONDS, wait=SECONDS, restart=SECONDS, lag=SECONDS, exposed=SECONDS,
)  # fmt: skip
@examples(200)
def test_the_parts_are_the_whole(
    interval: float, save: float, mtbf: float, announced: float, drain: float, wait: float, restart: float, lag: float,
    exposed: float,
) -> None:  # fmt: skip
    after = (0.0, wait, restart)
    kinds = (
        InterruptionKind(1 - announced, False, after),
        InterruptionKind(announced, True, (drain, wait, restart), exposed),
    )
    found = long_run_shares(interval, save, mtbf, kinds, after, lag)
    parts = (found.productive, found.stalled, found.recomputed, *found.down)
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(1.0, abs=1e-9)
    assert 0 <= found.interrupted <= 1


def test_what_means_nothing_is_refused() -> None:
    kind = InterruptionKind(1.0, False, (0.0,))
    with pytest.raises(ValueError, match="more than 0"):
        long_run_shares(0.0, 1.0, HOUR, (kind,), (0.0,))
    with pytest.raises(ValueError, match="parts of 1"):
        long_run_shares(1.0, 1.0, HOUR, (kind, kind), (0.0,))
    with pytest.raises(ValueError, match="more than zero"):
        best_interval(0.0, 3600.0)


def test_the_interval_of_a_short_save_is_young_s() -> None:
    assert best_interval(0.5, 86400.0) == pytest.approx(math.sqrt(2 * 0.5 * 86400.0), rel=0.01)


def test_the_interval_of_a_long_save_was_computed_by_hand() -> None:
    # C = 60 s, M = 1 h: sqrt(432000) = 657.27; x = 1/120, 657.27 (1 + 0.09129/3 + 0.00093) - 60
    assert best_interval(60.0, 3600.0) == pytest.approx(617.88, abs=0.05)


@pytest.mark.parametrize(("save", "mtbf"), [(0.1, 3600.0), (18.0, 3600.0), (600.0, 7200.0)])
def test_no_other_interval_loses_less(save: float, mtbf: float) -> None:
    best = best_interval(save, mtbf)
    others = [daly(best * factor, save, 30.0, mtbf) for factor in (0.5, 0.8, 1.25, 2.0)]
    assert all(daly(best, save, 30.0, mtbf) < other for other in others)


def test_saves_longer_than_the_time_between_failures_come_that_often() -> None:
    assert best_interval(100.0, 40.0) == 40.0
