"""Simulated campaigns, against what can be computed of them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.stats.interruptions import best_interval, expected_overhead
from convoy.stats.simulation import Assumed, Course, simulate

HOUR = 3600.0


def a_campaign(**changed: Any) -> Assumed:
    facts = {"seconds": 2000 * HOUR, "mtbf_seconds": HOUR, "stall_seconds": 18.0, "restart_seconds": 45.0}
    return Assumed(**(facts | changed))


def overhead(assumed: Assumed, seeds: int = 8) -> float:
    """Of several campaigns together."""
    found = [simulate(assumed, seed) for seed in range(seeds)]
    productive = sum(course.productive for course in found)
    return (sum(course.seconds for course in found) - productive) / productive


@pytest.mark.parametrize(
    ("mtbf", "stall", "restart"), [(HOUR, 18.0, 45.0), (HOUR, 0.5, 28.0), (3 * HOUR, 18.0, 45.0), (0.5 * HOUR, 60, 300)]
)
def test_the_overhead_is_the_one_that_daly_s_formula_expects(mtbf: float, stall: float, restart: float) -> None:
    # 80,000 interruptions: the simulated figure itself is uncertain by half a percent of it.
    assumed = a_campaign(seconds=10_000 * mtbf, mtbf_seconds=mtbf, stall_seconds=stall, restart_seconds=restart)
    expected = expected_overhead(best_interval(stall, mtbf), stall, restart, mtbf)
    assert overhead(assumed) == pytest.approx(expected, rel=0.02)


def test_interruptions_come_as_often_as_they_should() -> None:
    n = sum(simulate(a_campaign(), seed).interruptions for seed in range(10))
    assert n == pytest.approx(20_000, rel=0.02)


def test_the_same_seed_gives_the_same_campaign_and_another_seed_another() -> None:
    assert simulate(a_campaign(), 1) == simulate(a_campaign(), 1) != simulate(a_campaign(), 2)


def test_without_an_interruption_only_saves_cost() -> None:
    course = simulate(a_campaign(seconds=24 * HOUR, mtbf_seconds=1e12, durable_seconds=0), 0)
    assert (course.interruptions, course.recovered, course.recomputed, course.restarting) == (0, 0, 0.0, 0.0)
    assert course.productive == pytest.approx(24 * HOUR - course.stalled)


def test_announced_interruptions_lose_no_work() -> None:
    course = simulate(a_campaign(announced_share=1.0, announced_seconds=10.0), 0)
    assert course.recomputed == 0
    assert course.restarting == pytest.approx(10.0 * course.interruptions, rel=0.01)
    assert course.recovered == pytest.approx(course.interruptions, rel=0.01)


def test_a_gang_that_is_taken_again_before_it_is_further_has_not_recovered() -> None:
    course = simulate(a_campaign(mtbf_seconds=60.0, restart_seconds=60.0, seconds=HOUR * 100), 0)
    assert 0 < course.recovered < 0.5 * course.interruptions


def test_a_save_that_is_not_durable_yet_is_of_no_use() -> None:
    def lost(durable: float) -> float:
        found = [simulate(a_campaign(durable_seconds=durable), seed) for seed in range(8)]
        return sum(course.recomputed for course in found) / sum(course.interruptions for course in found)

    # For 100 s after each save a failure loses the interval before it too.
    interval = a_campaign().interval
    assert lost(118.0) - lost(18.0) == pytest.approx(100.0 / (interval + 18.0) * interval, rel=0.15)


@pytest.mark.parametrize("worse", ["stall_seconds", "restart_seconds", "durable_seconds"])
def test_what_takes_longer_costs_more(worse: str) -> None:
    costs = [overhead(a_campaign(**{worse: seconds})) for seconds in (20.0, 60.0, 180.0)]
    assert costs[0] < costs[1] < costs[2]


def test_rarer_interruptions_cost_less_and_so_do_announced_ones() -> None:
    assert overhead(a_campaign(mtbf_seconds=4 * HOUR)) < overhead(a_campaign(mtbf_seconds=HOUR))
    told = {"announced_seconds": 45.0}
    costs = [overhead(a_campaign(announced_share=share, **told)) for share in (0.0, 0.5, 1.0)]
    assert costs[0] > costs[1] > costs[2]


@given(
    st.builds(
        Assumed,
        seconds=st.floats(10.0, 1e6),
        mtbf_seconds=st.floats(100.0, 1e6),
        stall_seconds=st.floats(1e-3, 100.0),
        durable_seconds=st.floats(0.0, 500.0),
        restart_seconds=st.floats(0.0, 1000.0),
        announced_share=st.sampled_from([0.0, 0.3, 1.0]),
        announced_seconds=st.floats(0.0, 300.0),
    ),
    st.integers(0, 1000),
)
@settings(max_examples=200, deadline=None)
def test_the_parts_make_up_the_campaign(assumed: Assumed, seed: int) -> None:
    course: Course = simulate(assumed, seed)
    parts = (course.productive, course.stalled, course.recomputed, course.restarting)
    assert all(part >= 0 for part in parts)
    assert course.seconds == pytest.approx(assumed.seconds, rel=1e-6)
    assert course.recovered + course.cut_off <= course.interruptions
