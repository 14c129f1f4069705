"""What would make tokens cheaper, against ratios worked out by hand."""

from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.benchmark.analysis.levers import cheapest_hours, purchases
from convoy.benchmark.analysis.model import Lever
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.results.case import Case
from convoy.catalog.prices import SHIPPED, Market, Observed, PriceBook, PriceList, SpotHours
from convoy.stats.interval import Interval, exact, product
from tests.benchmark.results.cases import a_case
from tests.campaign import examples
from tests.report.bench_cases import GPU_CONFIG, GPUS, strategies, throughput

pytestmark = pytest.mark.campaign

EAST = "us-east-1"


def row(usd: float, market: Market, region: str = EAST) -> Observed:
    return Observed(
        instance="p4d.24xlarge", market=market, region=region, usd_per_hour=(usd,), date=date(2027, 1, 1), source="AWS"
    )


def refreshed(*rows: Observed, hours: tuple[float, ...] | None = None) -> PriceBook:
    told: tuple[SpotHours, ...] = ()
    if hours is not None:
        told = (
            SpotHours(
                instance="p4d.24xlarge", region=EAST, usd_per_hour=hours, n=28, days=14, date=date(2027, 1, 1),
                source="AWS",
            ),
        )  # fmt: skip
    return PriceBook(PriceList(refreshed=datetime(2027, 1, 1, tzinfo=UTC), prices=rows, spot_hours=told))


def measured() -> list[Case]:
    """On four p4d: ours, fp32 at half of its rate, and a smaller micro batch that is 20 % slower."""
    shared: dict[str, Any] = {"hardware": GPUS, "config": GPU_CONFIG, "tokens_per_step": 1_048_576}
    return [
        a_case("ours", 1.3, seed=1, baseline=None, **shared),
        a_case("fp32", 2.6, seed=2, baseline="ours", **shared),
        a_case("micro batch 2", 1.3 * 1.25, seed=3, baseline="ours", **shared),
    ]


def in_fp32() -> list[Case]:
    """The same, where ours computes in fp32, bf16 is twice as fast, and another case yet faster."""
    ours, fp32, smaller = measured()
    fast = ours.model_copy(update={"name": "compiled", "baseline": "ours", "blocks": _at(ours, 4)})
    return [ours, fp32.model_copy(update={"name": "bf16", "blocks": _at(ours, 2)}), smaller, fast]


def _at(case: Case, times: float) -> Any:
    """Its blocks, so many times as fast."""
    return tuple(block.model_copy(update={"seconds": block.seconds / times}) for block in case.blocks)


def found(cases: list[Case], prices: PriceBook = SHIPPED) -> list[Lever]:
    (cost,) = fold_cases(cases, prices=prices).costs
    return list(cost.levers)


def named(levers: list[Lever], start: str) -> Lever:
    (lever,) = [each for each in levers if each.name.startswith(start)]
    return lever


def ratio(lever: Lever) -> float:
    assert lever.ratio is not None
    return lever.ratio.estimate


def test_ways_and_places_to_buy_cost_by_their_prices() -> None:
    told = found(measured())
    assert ratio(named(told, "on demand in us-east-1 (what the rows below are compared with)")) == 1
    assert ratio(named(told, "spot in us-east-1")) == pytest.approx(9.9 / 21.9576)
    assert ratio(named(told, "spot in the cheapest zone of us-east-1")) == pytest.approx(6.53 / 21.9576)
    assert ratio(named(told, "on demand in another region")) == pytest.approx(1.0)
    assert ratio(named(told, "spot in another region: us-west-2")) == pytest.approx((11.93 + 14.55) / 2 / 21.9576)
    assert ratio(named(told, "reserved for a year in us-east-1")) == pytest.approx(13.9211 / 21.9576)
    assert "until they take 55% of the time; price of 2026-07-09" in named(told, "spot in us-east-1").assumes
    assert "used for 63% of it or more" in named(told, "reserved for a year").assumes


def bought_as(market: str, **more: Any) -> list[Case]:
    config = {**GPU_CONFIG, "cluster": {"region": EAST, "market": market, **more}}
    return [case.model_copy(update={"config": config}) for case in measured()]


def test_the_row_of_the_configured_market_is_marked() -> None:
    spot = [lever.name for lever in found(bought_as("spot"))]
    assert [name for name in spot if "configured" in name] == ["spot in us-east-1 (as configured)"]
    assert spot[0] == "on demand in us-east-1 (what the rows below are compared with)"
    demand = [lever.name for lever in found(bought_as("on_demand"))]
    assert demand[0] == "on demand in us-east-1 (as configured; what the rows below are compared with)"
    assert not any("configured" in name for name in demand[1:])


def test_a_price_of_ones_own_is_that_of_its_market() -> None:
    own = {"usd_per_hour": 7.5, "date": "2026-01-01", "source": "our contract"}
    told = found(bought_as("spot", price=own), refreshed(hours=(1.0,) * 24))
    spot = named(told, "spot in us-east-1 (as configured)")
    assert ratio(spot) == pytest.approx(7.5 / 21.9576)
    assert spot.assumes.endswith("price of 2026-01-01, our contract")
    assert not any(lever.name.startswith("spot in the cheapest zone") for lever in told)
    assert "does not tell how it moves with the hour" in named(told, "spot off-peak").why
    block = named(found(bought_as("capacity_block", price=own)), "capacity block in us-east-1 (as configured)")
    assert ratio(block) == pytest.approx(7.5 / 21.9576)


def test_levers_are_beside_a_price_of_ones_own_on_demand() -> None:
    own = {
        "usd_per_hour": 7.5, "date": "2026-01-01", "usd_per_hour_on_demand": 15.0, "on_demand_date": "2026-01-01",
    }  # fmt: skip
    told = found(bought_as("spot", price=own))
    assert ratio(named(told, "spot in us-east-1 (as configured)")) == pytest.approx(0.5)
    undated = {key: value for key, value in own.items() if key != "on_demand_date"}  # as older results have it
    told = found(bought_as("spot", price=undated))
    assert ratio(named(told, "spot in us-east-1 (as configured)")) == pytest.approx(7.5 / 21.9576)


def test_what_is_not_known_says_why() -> None:
    told = found(strategies())
    assert named(told, "capacity block").why == "no capacity block price of p4d.24xlarge in us-east-1 is known"
    assert named(told, "reserved for 3 years").why.endswith("in us-east-1 is known")
    assert named(told, "spot off-peak").why.startswith("no history of spot prices by the hour")
    assert named(told, "bf16").why.startswith("not measured")
    assert named(told, "accumulation").why.startswith("not measured")
    assert all(lever.ratio is None for lever in told if lever.why)


def test_off_peak_is_the_cheapest_eight_hours_and_takes_three_times_as_long() -> None:
    """Half the price from 20:00 to 04:00: 0.5 over a mean of (8 x 0.5 + 16) / 24 = 0.8333."""
    hours = tuple(5.0 if hour >= 20 or hour < 4 else 10.0 for hour in range(24))
    start, share = cheapest_hours(hours)
    assert (start, share) == (20, 0.6)
    told = found(measured(), refreshed(row(10.0, "spot"), row(20.0, "on_demand"), hours=hours))
    lever, now = named(told, "spot off-peak in us-east-1: 20:00 to 04:00 UTC"), told[0]
    assert ratio(lever) == pytest.approx(0.5 * 0.6)
    assert now.seconds_per_trillion_tokens is not None
    assert lever.seconds_per_trillion_tokens == pytest.approx(3 * now.seconds_per_trillion_tokens)
    assert "n = 28 for each hour" in lever.assumes


def test_precision_that_is_in_use_saves_nothing_more() -> None:
    lever = named(found(measured()), "bf16")
    assert lever.ratio is None
    assert lever.why.startswith("in use: with fp32 instead tokens would cost 1.99× (1.97")


def test_what_the_costed_case_does_is_in_use_and_saves_nothing_more() -> None:
    ours, bf16, *_ = in_fp32()
    told = found([ours, bf16])
    lever = named(told, "bf16")
    assert lever.why == "in use: with ours instead tokens would cost 2.00× (2.00 to 2.00)"
    assert not any("bf16" in each.name for each in told if each.name.startswith("together"))


def test_where_fp32_is_faster_it_is_what_is_in_use() -> None:
    ours, fp32, smaller = measured()
    fast = fp32.model_copy(update={"blocks": _at(ours, 2)})
    told = found([ours, fast, smaller])
    assert named(told, "fp32").why.startswith("in use: with ours instead tokens would cost 2.00×")
    assert not any(each.name.startswith("bf16") for each in told)


def test_precision_and_price_multiply_and_carry_the_interval() -> None:
    told = found(in_fp32())
    lever = named(told, "bf16 rather than fp32")
    assert ratio(lever) == pytest.approx(0.5)
    together = named(told, "together, on machines that may be taken away")
    assert ratio(together) == pytest.approx(0.5 * 6.53 / 21.9576)
    assert together.name.endswith("spot in the cheapest zone of us-east-1 + bf16 rather than fp32")
    assert together.ratio is not None
    assert lever.ratio is not None
    assert together.ratio.low == pytest.approx(lever.ratio.low * 6.53 / 21.9576)
    now = told[0]
    assert now.seconds_per_trillion_tokens is not None
    assert together.seconds_per_trillion_tokens == pytest.approx(now.seconds_per_trillion_tokens / 2)


def test_accumulation_costs_what_it_was_measured_to_cost() -> None:
    lever = named(found(measured()), "accumulation: micro batch 2")
    assert ratio(lever) == pytest.approx(1.25, rel=0.02)
    assert all("accumulation" not in each.name for each in found(measured()) if each.name.startswith("together"))


def test_a_technique_that_computes_something_else_is_no_lever() -> None:
    cases = in_fp32()
    cases[1] = cases[1].model_copy(update={"losses": (1.0, 1.0, 1.0)})
    assert named(found(cases), "bf16").why == "its losses differ"


def test_alternatives_are_not_combined_with_each_other() -> None:
    told = found(measured(), refreshed(row(10.0, "reserved"), row(2.0, "capacity_block")))
    without = named(told, "together, without interruptions")
    assert without.name == "together, without interruptions: capacity block in us-east-1"
    assert ratio(without) == pytest.approx(2.0 / 21.9576)


def test_where_nothing_is_cheaper_together_is_as_now() -> None:
    dear = [row(30.0, market, region) for market in ("spot", "reserved") for region in (EAST, "us-west-2")]
    told = found(measured(), refreshed(*dear, *[row(30.0, "on_demand", "us-east-2")]))
    assert not [lever for lever in told if lever.name.startswith("together, on machines")]
    without = named(told, "together, without interruptions")
    assert (without.name, ratio(without)) == ("together, without interruptions: nothing known is cheaper", 1.0)


def test_without_a_price_there_are_no_levers() -> None:
    assert found(throughput()) == []
    (cost,) = fold_cases(throughput()).costs
    assert cost.why
    assert (cost.levers, cost.topology) == ((), None)


def test_the_page_shows_them_and_the_json_has_them() -> None:
    (cost,) = fold_cases(strategies()).costs
    told = cost.model_dump()
    assert told["levers"][0]["ratio"]["estimate"] == 1
    assert told["topology"]["placements"][0]["level"] == "node"


RATIOS = st.tuples(st.floats(0.1, 10), st.floats(0, 0.5), st.floats(0, 0.5)).map(
    lambda x: Interval(estimate=x[0], low=x[0] * (1 - x[1]), high=x[0] * (1 + x[2]), n=20)
)


@given(st.lists(RATIOS, max_size=4))
@examples(200)
def test_a_product_lies_in_its_interval_and_of_none_is_one(ratios: list[Interval]) -> None:
    whole = product(*ratios)
    assert product() == exact(1.0)
    assert whole.low <= whole.estimate * (1 + 1e-12)
    assert whole.estimate <= whole.high * (1 + 1e-12)
    assert product(*ratios, exact(1.0)) == whole
    for each in ratios:
        turned = each.inverse()
        assert turned.low <= turned.estimate * (1 + 1e-12)


@given(st.floats(0.1, 100), st.floats(0.1, 1.0))
@examples(200)
def test_a_lower_price_is_never_dearer(usd: float, share: float) -> None:
    dear, cheap = (
        next(purchases("p4d.24xlarge", EAST, 20.0, refreshed(row(price, "spot")))) for price in (usd, usd * share)
    )
    assert dear.name == cheap.name == "spot in us-east-1"
    assert dear.ratio is not None
    assert cheap.ratio is not None
    assert cheap.ratio <= dear.ratio
