"""The recovery table, and the campaign that is computed from it."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from convoy.benchmark.fold import fold_cases
from convoy.benchmark.page import benchmark_page
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.catalog.instances import mtbf_seconds
from convoy.catalog.prices import Observed, PriceBook, PriceList
from convoy.display.markdown import to_markdown
from convoy.display.page import Callout
from convoy.planner.cost.failures import GPU_FAULT_SECONDS, Drain, Restart, Saving, best_save_interval, on_spot
from convoy.planner.cost.spot import expected_campaign
from convoy.stats.interval import proportion
from tests.benchmark.cases import GPUS, a_drill, faults, saves, survival, with_campaign


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
    report = fold_cases([case.model_copy(update={"samples": {}, "values": {}}) for case in cases])
    assert report.recovery == ()
    assert "| recovery | partition | refused | this machine lacks root |" in to_markdown(benchmark_page(cases))


def test_the_campaign_is_fed_with_what_was_measured() -> None:
    found = fold_cases(with_campaign(survival(), replacement_seconds=100.0)).campaign
    assert found is not None
    assert found.why == ""
    assert (found.stall_seconds, found.durable_seconds) == (0.02, 1.5)
    assert (found.restart_seconds, found.announced_seconds, found.saved_seconds) == (105.0, 106.0, 1.0)
    assert found.taken_per_month == 0.10
    assert "Spot Instance Advisor" in found.taken_source
    taken, both = mtbf_seconds(0.10, 4), interrupted(0.10, 4)
    assert found.mtbf_seconds == pytest.approx(both)
    assert [course.announced_share for course in found.courses] == [pytest.approx(both / taken), 0.0]


def interrupted(share: float, nodes: int) -> float:
    """Mean time until one of machines with eight GPUs each is taken away or breaks."""
    return 1 / (1 / mtbf_seconds(share, nodes) + 8 * nodes / GPU_FAULT_SECONDS.value)


def on_p4d(region: str = "us-west-2") -> list[Case]:
    """Saves of four machines that have a name."""
    return [*saves(hardware=GPUS, config={"cluster": {"region": region}}), *faults()]


def test_machines_that_are_left_open_are_those_on_which_saves_were_measured() -> None:
    two = GPUS.model_copy(update={"nodes": 2, "instance_type": "p5.48xlarge"})
    found = fold_cases([*saves(hardware=two, config={"cluster": {"region": "us-west-2"}}), *faults()]).campaign
    assert found is not None
    setting = found.setting
    assert (setting.nodes, setting.instance_type, setting.region) == (2, "p5.48xlarge", "us-west-2")
    assert (found.example, found.saved_on) == (False, "2 × p5.48xlarge")
    assert found.mtbf_seconds == pytest.approx(interrupted(0.20, 2))
    assert "An example" not in to_markdown(benchmark_page(on_p4d()))


@pytest.mark.parametrize(
    ("cases", "where", "setting", "machines"),
    [
        (survival(), "AMD EPYC 7R13", {}, "4 × p4d.24xlarge"),
        (survival(), "AMD EPYC 7R13", {"instance_type": "p5.48xlarge", "nodes": 8}, "8 × p5.48xlarge"),
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
    cases = with_campaign(survival(), bad_day_hours=3.0)
    found = fold_cases(cases).campaign
    assert found is not None
    announced, lost = found.bad_day
    assert (announced.announced_share, lost.announced_share) == (pytest.approx(1.0, abs=0.01), 0.0)
    assert lost.mtbf_seconds == pytest.approx(3 * 3600, rel=0.01)
    assert lost.interval_seconds == found.courses[-1].interval_seconds, "nobody knows of it before"
    assert lost.mean_overhead > 10 * found.courses[-1].mean_overhead
    page = to_markdown(benchmark_page(cases))
    assert "announced | None announced | Bad day, 99.8 % announced | Bad day, none announced |" in page
    assert "| The same on a bad day | 3 h 00 m | assumed: recovery.campaign.bad\\_day\\_hours |" in page


def test_it_is_what_the_plan_of_the_same_machines_expects() -> None:
    found = fold_cases(with_campaign(survival(), days=20, nodes=64, replacement_seconds=300.0)).campaign
    assert found is not None
    band, saving, restart = on_spot("p4d.24xlarge", 64, Drain(0.4, 0.6)), Saving(0.02, 1.5), Restart(5.0, 300.0)
    assert band is not None
    planned = expected_campaign(1e6, band.often, best_save_interval(band, saving), band, saving, restart)
    course = found.courses[0]
    assert course.mean_overhead == pytest.approx(planned.overhead)
    assert course.restarting == pytest.approx(planned.down_seconds / planned.seconds)
    assert course.mean_overhead < found.courses[1].mean_overhead, "what is announced loses no work"
    assert 0.99 < course.recovered.estimate < 1
    parts = course.stalled + course.recomputed + course.restarting
    assert parts / (1 - parts) == pytest.approx(course.mean_overhead)


def test_luck_takes_a_campaign_from_few_interruptions_to_many() -> None:
    """240 of them in 30 days, with a standard deviation of 15.5; each costs what one is expected to cost."""
    found = fold_cases(with_campaign(survival(), bad_day_hours=3.0)).campaign
    assert found is not None
    course = found.bad_day[-1]
    count, overhead = course.interruptions, course.overhead
    assert (count.low, count.median, count.high) == (pytest.approx(215, abs=1), 240, pytest.approx(266, abs=1))
    assert overhead.low < overhead.median < overhead.high
    assert overhead.median == pytest.approx(course.mean_overhead, rel=0.005)
    assert overhead.high == pytest.approx(course.mean_overhead * 266 / 240, rel=0.02)


def test_work_that_would_hardly_ever_end_is_told_so() -> None:
    found = fold_cases(with_campaign(survival(), replacement_seconds=1e9)).campaign
    assert found is not None
    assert "hardly ever end" in found.why
    assert found.courses == ()


def test_a_notice_too_short_for_the_save_is_worth_nothing() -> None:
    found = fold_cases(with_campaign(survival(), notice_seconds=0.9)).campaign
    assert found is not None
    assert [course.announced_share for course in found.courses] == [0.0]


def test_savings_are_the_price_with_the_overhead_beside_the_price_on_demand() -> None:
    def price(market: Any, usd: float) -> Observed:
        return Observed(
            instance="p4d.24xlarge", market=market, region="us-east-1", usd_per_hour=(usd,),
            date=date(2026, 11, 23), source="a test",
        )  # fmt: skip

    refreshed = PriceList(
        refreshed=datetime(2026, 11, 23, tzinfo=UTC), prices=(price("spot", 5.0), price("on_demand", 20.0))
    )
    found = fold_cases(survival(), prices=PriceBook(refreshed)).campaign
    assert found is not None
    course = found.courses[0]
    assert course.savings is not None
    assert course.savings.median == pytest.approx(1 - 0.25 * (1 + course.overhead.median))
    assert "spot 5.00 USD an hour, 2026-11-23, a test" in found.prices


def test_savings_reach_from_the_dearest_zone_to_the_cheapest() -> None:
    """Four zones of us-east-1, from 6.53 to 13.99 USD an hour beside 21.9576 on demand."""
    found = fold_cases(survival()).campaign
    assert found is not None
    course = found.courses[0]
    assert course.savings is not None
    assert (course.savings.low, course.savings.high) == pytest.approx(
        (1 - 13.99 / 21.9576 * (1 + course.overhead.high), 1 - 6.53 / 21.9576 * (1 + course.overhead.low))
    )
    assert "spot 9.90 USD an hour, 6.53 to 13.99 by zone, 2026-07-09" in found.prices[0]
    (row,) = [line for line in to_markdown(benchmark_page(survival())).splitlines() if "Cheaper than" in line]
    assert "% to 70.3 %, over zones and numbers of interruptions)" in row


OWN = {
    "usd_per_hour": 7.5, "date": "2026-01-01", "source": "our contract",
    "usd_per_hour_on_demand": 15.0, "on_demand_date": "2026-01-01", "on_demand_source": "our contract",
}  # fmt: skip


@pytest.mark.parametrize(
    ("market", "setting", "share"),
    [
        ("spot", {}, 7.5 / 15.0),
        ("on_demand", {}, 9.9 / 7.5),
        ("capacity_block", {}, 9.9 / 15.0),
        ("spot", {"region": "us-west-2"}, (11.93 + 14.55) / 2 / 21.9576),
        ("spot", {"instance_type": "p5.48xlarge"}, None),
    ],
)
def test_savings_are_of_a_price_of_ones_own_where_it_is_of_these_machines(
    market: str, setting: dict[str, Any], share: float | None
) -> None:
    config = {"cluster": {"region": "us-east-1", "market": market, "price": OWN}}
    cases = [*saves(hardware=GPUS, config=config), *faults()]
    found = fold_cases(with_campaign(cases, **setting)).campaign
    assert found is not None
    course = found.courses[0]
    assert course.savings is not None
    if share is not None:
        assert course.savings.median == pytest.approx(1 - share * (1 + course.overhead.median))
    told = any("our contract" in price for price in found.prices)
    assert told == (not setting)


@pytest.mark.parametrize(
    ("cases", "setting", "why"),
    [
        (faults(), {}, "no stall of a save was measured"),
        ([*saves(), faults()[1]], {}, "no recovery from node-kill was measured"),
        (survival(), {"instance_type": "g5.xlarge"}, "how often g5.xlarge is taken away is not known"),
    ],
)
def test_without_what_it_needs_nothing_is_computed(cases: list[Case], setting: dict[str, Any], why: str) -> None:
    found = fold_cases(with_campaign(cases, **setting)).campaign
    assert found is not None
    assert found.courses == ()
    assert why in found.why
    assert f"Not computed: {why.split('(')[0]}" in to_markdown(benchmark_page(with_campaign(cases, **setting)))


def test_a_machine_without_a_price_has_no_savings() -> None:
    found = fold_cases(with_campaign(survival(), instance_type="g5.xlarge", taken_per_month=0.2)).campaign
    assert found is not None
    assert found.courses[0].savings is None
    page = to_markdown(benchmark_page(with_campaign(survival(), instance_type="g5.xlarge", taken_per_month=0.2)))
    assert "a price is not known" in page


def test_the_page_says_that_it_is_computed() -> None:
    page = to_markdown(benchmark_page(survival()))
    assert "## Campaign on spot machines (expected): 4 × p4d.24xlarge, us-east-1, 30 days" in page
    assert "Computed by the planner's model of interruptions" in page


def test_without_the_suite_there_is_neither() -> None:
    report = fold_cases(saves())
    assert report.recovery == ()
    assert report.campaign is None
