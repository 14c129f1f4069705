"""Time and cost until so many tokens are trained, in each market."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from convoy.planner.cost.campaign import expected_campaign
from convoy.planner.cost.cost_model import CostModel
from convoy.planner.cost.failures import (
    FailureModel,
    RestartCost,
    SaveCost,
    assumed_restart,
    assumed_save,
    best_save_interval,
    expected_drain,
    spot_failures,
)
from convoy.planner.cost.market_plans import MarketPlans, plan_markets, spot_plan
from convoy.planner.measurements import Measurements
from tests.campaign import examples
from tests.planner.test_plan import preset
from tests.planner.workloads import workload_of

pytestmark = pytest.mark.campaign

P4D, DAY = "p4d.24xlarge", 86400.0


def a_cost_model(words: str = "", **measured: Any) -> CostModel:
    """30 days of work on 4 p4d in us-east-1, saved every 3,000 s."""
    config = preset("gpt-7b-p4d", f"train.steps=864 checkpoint.every_steps=1 root=/fsx {words}")
    given = {"saving": SaveCost(0.7, 25.0), "restart": RestartCost(25.0, 600.0), **measured}
    return CostModel(config, workload_of(config), 3000.0, Measurements(**given))


def a_budget(words: str = "", **measured: Any) -> MarketPlans:
    return plan_markets(a_cost_model(words, **measured))


def own_price(market: str) -> str:
    price = '{usd_per_hour: 5.0, date: 2026-01-01, source: "our contract"}'
    return f"cluster.market={market} 'cluster.price={price}'"


def test_time_and_cost_on_demand() -> None:
    """Something of 32 GPUs breaks each 66 days, which loses half an interval and 24.3 s, waits and restarts."""
    on_demand, _ = a_budget().steady
    overhead = on_demand.seconds / on_demand.parts["productive"] - 1
    each = 54 * DAY * 16384 / 419 / 32
    expected = 0.7 / 3000 + (1500 + 24.3 + 625) / each
    assert overhead == pytest.approx(expected, rel=0.01)
    assert on_demand.cost is not None
    hours = (on_demand.seconds * 4 - on_demand.parts["waiting"]) / 3600
    assert on_demand.cost.usd == pytest.approx(hours * 21.9576, rel=1e-6)
    assert on_demand.cost.usd == pytest.approx(4 * 21.9576 * 30 * 24 * (1 + overhead), rel=0.001)


def test_savings_reach_over_zones_and_the_band() -> None:
    """Zones from 6.53 to 13.99 USD an hour, compared with 21.9576 on demand."""
    spot = a_budget().spot
    assert spot is not None
    assert spot.savings == pytest.approx((1 - 13.99 / 21.9576, 1 - 9.9 / 21.9576, 1 - 6.53 / 21.9576), abs=0.002)
    assert spot.shortest_seconds < spot.seconds


def test_a_price_of_one_s_own_is_that_of_its_market() -> None:
    spot = a_budget(own_price("spot")).spot
    assert spot is not None
    assert spot.cost is not None
    assert (spot.cost.usd_per_hour, spot.cost.source) == (5.0, "our contract")
    assert spot.most_usd == spot.cost.usd
    on_demand = a_budget(own_price("on_demand")).steady[0]
    assert on_demand.cost is not None
    assert on_demand.cost.usd_per_hour == 5.0


def test_an_unknown_price_has_no_cost_and_says_why() -> None:
    block = a_budget().steady[1]
    assert (block.market, block.cost) == ("capacity_block", None)
    assert block.why == "no capacity block price of p4d.24xlarge in us-east-1 is known"
    far = a_budget("cluster.region=af-south-1")
    assert [offer.cost for offer in far.steady] == [None, None]
    assert far.spot is not None
    assert (far.spot.cost, far.spot.savings) == (None, None)
    assert far.spot.why == "no spot price of p4d.24xlarge in af-south-1 is known"
    assert far.spot.seconds > 30 * DAY  # time is known all the same


def test_without_a_price_on_demand_spot_saves_nothing_that_is_known() -> None:
    spot = a_budget(f"cluster.region=af-south-1 {own_price('spot')}").spot
    assert spot is not None
    assert spot.cost is not None
    assert spot.savings is None


def test_without_an_interruption_rate_there_is_no_forecast_for_spot() -> None:
    found = a_budget("cluster.instance_type=g5.48xlarge")
    assert (found.spot, found.why_no_spot) == (None, "how often g5.48xlarge is reclaimed is not known")
    assert found.steady[0].cost is not None


def test_where_training_on_spot_would_hardly_ever_end_it_costs_what_it_does_elsewhere() -> None:
    found = a_budget(replacement_seconds=4e7)
    assert found.spot is None
    assert "it would hardly ever end" in found.why_no_spot
    assert [offer.market for offer in found.steady] == ["on_demand", "capacity_block"]
    assert found.steady[0].cost is not None


def test_reserved_machines_differ_from_those_on_demand_in_their_price_alone() -> None:
    on_demand, _, reserved = a_budget("cluster.market=reserved").steady
    assert on_demand.cost is not None
    assert reserved.cost is not None
    assert (reserved.market, reserved.seconds, reserved.parts) == ("reserved", on_demand.seconds, on_demand.parts)
    assert reserved.cost.usd / on_demand.cost.usd == pytest.approx(13.9211 / 21.9576, rel=1e-4)
    *_, unknown = a_budget("cluster.instance_type=p5.48xlarge cluster.market=reserved").steady
    assert unknown.why == "no reserved price of p5.48xlarge in us-east-1 is known"
    *_, own = a_budget(f"cluster.instance_type=p5.48xlarge {own_price('reserved')}").steady
    assert own.cost is not None
    assert own.cost.usd_per_hour == 5.0


def test_a_capacity_block_is_bought_where_there_is_one() -> None:
    """31 days of which the last is not used whole, at 39.33 USD."""
    block = a_budget("cluster.instance_type=p5.48xlarge").steady[1]
    assert block.cost is not None
    assert block.cost.usd == pytest.approx(31 * 24 * 4 * 39.33, abs=0.01)
    assert block.cost.machines["unused"] > 0


@given(st.floats(1e9, 1e12), st.integers(1, 32), st.floats(1e7, 1e11), st.floats(1.0, 20.0), st.floats(0.1, 60.0))
@examples(100)
def test_more_bandwidth_is_never_slower(state: float, nodes: int, rate: float, more: float, step: float) -> None:
    def planned(bandwidth: float) -> tuple[FailureModel, SaveCost, RestartCost]:
        saving = assumed_save(state, 8 * nodes, 100e6, nodes * bandwidth)
        restart = assumed_restart(state, 8 * nodes, nodes * bandwidth)
        told = spot_failures(P4D, nodes, expected_drain(state, nodes, bandwidth, step))
        assert told is not None
        return told, saving, restart

    def seconds(bandwidth: float) -> float:
        told, saving, restart = planned(bandwidth)
        return expected_campaign(
            1e7, told.highest_rate, best_save_interval(told, saving), told, saving, restart
        ).seconds

    told, saving, _ = planned(rate)
    assume(saving.durable_seconds + 3 * saving.stall_seconds <= best_save_interval(told, saving))  # as in test_campaign
    assert seconds(more * rate) <= seconds(rate) * (1 + 1e-4)


@given(st.floats(0.0, 0.4), st.floats(0.0, 0.2), st.floats(0.1, 0.4))
@examples(50)
def test_who_is_taken_away_more_often_never_pays_less(low: float, wider: float, more: float) -> None:
    cost_model = a_cost_model("root=s3://bucket")

    def usd(shift: float) -> list[float]:
        spot = spot_plan(cost_model, FailureModel(4, low + shift, low + wider + shift, faults_seconds=1e7), None)
        assert spot.cost is not None
        return [usd for usd in (spot.least_usd, spot.cost.usd, spot.most_usd) if usd is not None]

    fewer, often = usd(0.0), usd(more)
    assert len(fewer) == len(often) == 3
    assert all(a <= b for a, b in zip(fewer, often, strict=True))
    assert fewer == sorted(fewer)
