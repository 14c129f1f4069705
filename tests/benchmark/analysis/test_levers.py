"""What tokens would cost elsewhere, against ratios worked out by hand."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from convoy.benchmark.analysis.levers import cheapest_hours
from convoy.benchmark.analysis.model import Lever
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.results.case import Case
from convoy.catalog.prices import SHIPPED, Market, Observed, PriceBook, PriceList, SpotHours
from tests.report.bench_cases import GPU_CONFIG, strategies, throughput

EAST = "us-east-1"


def row(usd: float, market: Market, region: str = EAST) -> Observed:
    return Observed(
        instance="p4d.24xlarge", market=market, region=region, usd_per_hour=(usd,), date=date(2027, 1, 1), source="AWS"
    )


def refreshed(*rows: Observed, hours: tuple[float, ...] | None = None) -> PriceBook:
    rows_by_hour: tuple[SpotHours, ...] = ()
    if hours is not None:
        rows_by_hour = (
            SpotHours(
                instance="p4d.24xlarge", region=EAST, usd_per_hour=hours, n=28, days=14, date=date(2027, 1, 1),
                source="AWS",
            ),
        )  # fmt: skip
    return PriceBook(PriceList(refreshed=datetime(2027, 1, 1, tzinfo=UTC), prices=rows, spot_hours=rows_by_hour))


def levers(cases: list[Case], prices: PriceBook = SHIPPED) -> list[Lever]:
    (cost,) = fold_cases(cases, prices=prices).costs
    return list(cost.levers)


def named(levers: list[Lever], start: str) -> Lever:
    (lever,) = [each for each in levers if each.name.startswith(start)]
    return lever


def ratio(lever: Lever) -> float:
    assert lever.ratio is not None
    return lever.ratio.estimate


def bought_as(market: str, **more: Any) -> list[Case]:
    config = {**GPU_CONFIG, "cluster": {"region": EAST, "market": market, **more}}
    return [case.model_copy(update={"config": config}) for case in strategies()]


def test_ways_and_places_to_buy_cost_by_their_prices() -> None:
    rows = levers(strategies())
    assert (rows[0].name, ratio(rows[0])) == ("on demand in us-east-1", 1)
    assert ratio(named(rows, "spot in us-east-1")) == pytest.approx(9.9 / 21.9576)
    assert ratio(named(rows[1:], "on demand in")) == pytest.approx(1.0)
    assert ratio(named(rows, "spot in us-west-2")) == pytest.approx((11.93 + 14.55) / 2 / 21.9576)
    assert ratio(named(rows, "reserved for a year in us-east-1")) == pytest.approx(13.9211 / 21.9576)
    assert "until they take 55% of the time; price of 2026-07-09" in named(rows, "spot in us-east-1").assumes
    assert "used for 63% of it or more" in named(rows, "reserved for a year").assumes
    now, spot = rows[0].usd_per_million_tokens, named(rows, "spot in us-east-1").usd_per_million_tokens
    assert now is not None
    assert spot is not None
    assert (spot.estimate, spot.high) == pytest.approx((now.estimate * 9.9 / 21.9576, now.high * 9.9 / 21.9576))


@pytest.mark.parametrize(("market", "name"), [("spot", "spot in us-east-1"), ("on_demand", "on demand in us-east-1")])
def test_the_row_of_the_configured_market_is_marked(market: str, name: str) -> None:
    rows = levers(bought_as(market))
    assert [row.name for row in rows if "configured" in row.name] == [f"{name} (as configured)"]
    assert rows[0].name.startswith("on demand in us-east-1")


def test_a_price_of_ones_own_is_that_of_its_market() -> None:
    own = {"usd_per_hour": 7.5, "date": "2026-01-01", "source": "our contract"}
    rows = levers(bought_as("spot", price=own), refreshed(hours=(1.0,) * 24))
    spot = named(rows, "spot in us-east-1")  # no row off-peak: the price does not say how it moves with the hour
    assert ratio(spot) == pytest.approx(7.5 / 21.9576)
    assert spot.assumes.endswith("price of 2026-01-01, our contract")
    block = named(levers(bought_as("capacity_block", price=own)), "capacity block in us-east-1 (as configured)")
    assert ratio(block) == pytest.approx(7.5 / 21.9576)


def test_a_price_of_ones_own_on_demand_is_what_others_are_compared_with() -> None:
    own = {
        "usd_per_hour": 7.5, "date": "2026-01-01", "usd_per_hour_on_demand": 15.0, "on_demand_date": "2026-01-01",
    }  # fmt: skip
    assert ratio(named(levers(bought_as("spot", price=own)), "spot in us-east-1")) == pytest.approx(0.5)
    undated = {key: value for key, value in own.items() if key != "on_demand_date"}  # as older results have it
    rows = levers(bought_as("spot", price=undated))
    assert ratio(named(rows, "spot in us-east-1")) == pytest.approx(7.5 / 21.9576)


def test_a_price_that_is_not_known_has_no_ratio() -> None:
    unknown = [row for row in levers(strategies()) if row.ratio is None]
    assert [row.name for row in unknown] == ["reserved for 3 years in us-east-1", "capacity block in us-east-1"]
    assert {row.why for row in unknown} == {"no price of p4d.24xlarge is known"}


def test_off_peak_is_the_cheapest_eight_hours_and_takes_three_times_as_long() -> None:
    """Half the price from 20:00 to 04:00: 0.5 over a mean of (8 x 0.5 + 16) / 24 = 0.8333."""
    hours = tuple(5.0 if hour >= 20 or hour < 4 else 10.0 for hour in range(24))
    start, share = cheapest_hours(hours)
    assert (start, share) == (20, pytest.approx(0.6))
    rows = levers(strategies(), refreshed(row(10.0, "spot"), row(20.0, "on_demand"), hours=hours))
    lever, now = named(rows, "spot in us-east-1, 20:00 to 04:00 UTC"), rows[0]
    assert ratio(lever) == pytest.approx(0.5 * 0.6)
    assert now.seconds_per_trillion_tokens is not None
    assert lever.seconds_per_trillion_tokens == pytest.approx(3 * now.seconds_per_trillion_tokens)
    assert "n = 28" in lever.assumes


def test_without_a_price_there_are_no_levers() -> None:
    assert levers(throughput()) == []
