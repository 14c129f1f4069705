"""The recovery table, and the campaign that is computed from it."""

from typing import Any

import pytest

from convoy.benchmark.analysis.campaign import CampaignCourse, CampaignFigures
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.page import benchmark_page
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.catalog.instances import mtbf_seconds
from convoy.display.markdown import to_markdown
from convoy.display.page import Callout
from convoy.planner.cost.campaign import expected_campaign
from convoy.planner.cost.failures import (
    GPU_FAULT_SECONDS,
    Drain,
    RestartCost,
    SaveCost,
    best_save_interval,
    spot_failures,
)
from convoy.stats.interval import proportion
from tests.benchmark.cases import GPUS, a_drill, faults, replaced, saves, survival, with_campaign


def test_a_share_of_trials_has_wilson_s_interval() -> None:
    cases = [a_drill("node-kill", (0.2,) * 8, (5.0,) * 8, values={values.RECOVERED_TRIALS: 7.0}, reason="it hung")]
    (found,) = fold_cases(cases).recovery
    assert (found.recovered_trials, found.trials) == (7, 8)
    assert found.recovery_rate == proportion(7, 8)
    assert (found.samples_lost, found.states_equal, found.states_compared) == (0, 8, 8)


def test_the_table_has_each_drill_beside_its_targets() -> None:
    page = to_markdown(benchmark_page(faults()))
    (row,) = [line for line in page.splitlines() if line.startswith("| node-kill")]
    assert "3/3 | 43.9 to 100 % | 250 ms (from 200 to 300, n = 3) | 500 ms | 5.0 s" in row
    assert "target missed" not in page
    slow = to_markdown(benchmark_page([a_drill("node-kill", (0.6,), (9.0,))]))
    assert "600 ms, n = 1, target missed | 500 ms | 9.0 s, n = 1, target missed | 8.0 s" in slow


def test_what_did_not_recover_is_told_above_the_table() -> None:
    told = {values.RECOVERED_TRIALS: 0.0, values.SAMPLES_LOST: 16.0}
    page = to_markdown(benchmark_page([a_drill("node-kill", (0.2,), (5.0,), values=told, reason="16 samples lost")]))
    assert "node-kill: 1 of 1 not recovered" in page
    assert "16 samples lost" in page


def test_a_drill_that_this_machine_cannot_run_is_among_the_refused() -> None:
    cases = [a_drill("partition", (), (), status="refused", reason="this machine lacks root", values={})]
    report = fold_cases([replaced(case, samples={}, values={}) for case in cases])
    assert report.recovery == ()
    assert "| recovery | partition | refused | this machine lacks root |" in to_markdown(benchmark_page(cases))


def campaign_of(cases: list[Case]) -> tuple[CampaignFigures, CampaignCourse]:
    """With the course that is expected."""
    found = fold_cases(cases).campaign
    return found, found.course


def interrupted(share: float, nodes: int) -> float:
    """Mean time until one of machines with eight GPUs each is reclaimed or breaks."""
    return 1 / (1 / mtbf_seconds(share, nodes) + 8 * nodes / GPU_FAULT_SECONDS.value)


def on_p4d(region: str = "us-west-2") -> list[Case]:
    """Saves of four machines that have a name."""
    return [*saves(hardware=GPUS, config={"cluster": {"region": region}}), *faults()]


def test_the_campaign_is_fed_with_what_was_measured() -> None:
    found, course = campaign_of(with_campaign(survival(), replacement_seconds=100.0))
    assert {each.what: each.seconds for each in found.inputs} == {
        "Mean time between interruptions of the gang": pytest.approx(interrupted(0.10, 4)), "Stall of a save": 0.02,
        "Save until durable": 1.5, "Machine lost until work resumes": 105.0, "Notice until work resumes": 106.0,
        "Notice until all is saved": 1.0, "Notice until the machine is gone": 120.0,
        "Wait for another machine, added to both restarts": 100.0,
    }  # fmt: skip
    assert found.taken_per_month == 0.10
    assert "Spot Instance Advisor" in found.taken_source
    assert course.announced_share == pytest.approx(interrupted(0.10, 4) / mtbf_seconds(0.10, 4))
    _, late = campaign_of(with_campaign(survival(), notice_seconds=0.9))
    assert late.announced_share == 0.0, "a notice too short for the save is worth nothing"


def test_machines_that_are_left_open_are_those_on_which_saves_were_measured() -> None:
    two = replaced(GPUS, nodes=2, instance_type="p5.48xlarge")
    found, course = campaign_of([*saves(hardware=two, config={"cluster": {"region": "us-west-2"}}), *faults()])
    setting = found.setting
    assert (setting.nodes, setting.instance_type, setting.region) == (2, "p5.48xlarge", "us-west-2")
    assert found.example == ""
    assert course.mtbf_seconds == pytest.approx(interrupted(0.20, 2))
    assert "An example" not in to_markdown(benchmark_page(on_p4d()))


@pytest.mark.parametrize(
    ("cases", "where", "setting", "machines"),
    [
        (survival(), "AMD EPYC 7R13", {}, "4 × p4d.24xlarge"),
        (on_p4d(), "4 × p4d.24xlarge", {"instance_type": "p5.48xlarge"}, "4 × p5.48xlarge"),
        (on_p4d(), "4 × p4d.24xlarge", {"nodes": 16}, "16 × p4d.24xlarge"),
    ],
)
def test_what_was_measured_elsewhere_is_an_example_and_no_forecast(
    cases: list[Case], where: str, setting: dict[str, Any], machines: str
) -> None:
    page = benchmark_page(with_campaign(cases, **setting))
    (told,) = [block for block in page.blocks if isinstance(block, Callout)]
    assert told.title == "An example, not a forecast"
    assert told.text.startswith(
        f"No save was measured on {machines}: stalls and saves are those of tiny (1.20 GB) on {where}, restarts those "
        "of a gang of 3 on one host."
    )


def test_a_bad_day_stands_beside_the_band() -> None:
    found, course = campaign_of(with_campaign(survival(), bad_day_hours=3.0))
    bad = found.bad_day
    assert (bad.mtbf_seconds, bad.interruptions) == (pytest.approx(3 * 3600, rel=0.01), pytest.approx(240, rel=0.01))
    assert bad.interval_seconds == course.interval_seconds, "nobody knows of it before"
    assert bad.overhead > 10 * course.overhead


def test_it_is_what_the_plan_of_the_same_machines_expects() -> None:
    setting: dict[str, Any] = {"days": 20, "nodes": 64, "replacement_seconds": 300.0}
    _, course = campaign_of(with_campaign(survival(), **setting))
    band, saving, restart = (
        spot_failures("p4d.24xlarge", 64, Drain(0.4, 0.6)),
        SaveCost(0.02, 1.5),
        RestartCost(5.0, 300.0),
    )
    planned = expected_campaign(1e6, band.highest_rate, best_save_interval(band, saving), band, saving, restart)
    assert course.overhead == pytest.approx(planned.overhead)
    assert course.restarting == pytest.approx(planned.down_seconds / planned.seconds)
    assert 0.99 < course.recovered < 1
    parts = course.stalled + course.recomputed + course.restarting
    assert parts / (1 - parts) == pytest.approx(course.overhead)
    _, lost = campaign_of(with_campaign(survival(), **setting, announced_share=0.0))
    assert course.overhead < lost.overhead, "what is announced loses no work"


def test_savings_reach_from_the_dearest_zone_to_the_cheapest() -> None:
    """Four zones of us-east-1, from 6.53 to 13.99 USD an hour beside 21.9576 on demand."""
    found, course = campaign_of(survival())
    assert (course.savings.low, course.savings.high) == pytest.approx(
        tuple(1 - usd / 21.9576 * (1 + course.overhead) for usd in (13.99, 6.53))
    )
    assert "spot 9.90 USD an hour, 6.53 to 13.99 by zone, 2026-07-09" in found.prices[0]


OWN = {
    "usd_per_hour": 7.5, "date": "2026-01-01", "source": "our contract",
    "usd_per_hour_on_demand": 15.0, "on_demand_date": "2026-01-01", "on_demand_source": "our contract",
}  # fmt: skip


@pytest.mark.parametrize(
    ("market", "setting", "share"),
    [
        ("spot", {}, 7.5 / 15.0),
        ("on_demand", {}, 9.9 / 7.5),
        ("spot", {"region": "us-west-2"}, (11.93 + 14.55) / 2 / 21.9576),
    ],
)
def test_savings_are_of_a_price_of_ones_own_where_it_is_of_these_machines(
    market: str, setting: dict[str, Any], share: float
) -> None:
    config = {"cluster": {"region": "us-east-1", "market": market, "price": OWN}}
    found, course = campaign_of(with_campaign([*saves(hardware=GPUS, config=config), *faults()], **setting))
    assert course.savings.median == pytest.approx(1 - share * (1 + course.overhead))
    assert any("our contract" in price for price in found.prices) == (not setting)


@pytest.mark.parametrize(
    ("cases", "setting", "why"),
    [
        (faults(), {}, "no stall of a save was measured"),
        ([*saves(), faults()[1]], {}, "no recovery from node-kill was measured"),
        (survival(), {"instance_type": "g5.xlarge"}, "how often g5.xlarge is reclaimed is not known"),
        (survival(), {"replacement_seconds": 1e9}, "an interruption every "),
    ],
)
def test_without_what_it_needs_nothing_is_computed(cases: list[Case], setting: dict[str, Any], why: str) -> None:
    found = fold_cases(with_campaign(cases, **setting)).campaign
    assert found.course is None
    assert why in found.why
    assert f"Not computed: {why.split('(')[0]}" in to_markdown(benchmark_page(with_campaign(cases, **setting)))


def test_a_machine_without_a_price_has_no_savings() -> None:
    cases = with_campaign(survival(), instance_type="g5.xlarge", taken_per_month=0.2)
    assert campaign_of(cases)[1].savings is None
    assert "a price is not known" in to_markdown(benchmark_page(cases))


def test_without_the_suite_there_is_neither() -> None:
    report = fold_cases(saves())
    assert report.recovery == ()
    assert report.campaign is None
