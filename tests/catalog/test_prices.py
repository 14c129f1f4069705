"""A price has a date, a region and a source, or there is none."""

from datetime import date

import pytest

from convoy.catalog.instances import instance
from convoy.catalog.prices import Market, Price, no_such_region, price, regions
from convoy.catalog.tables import table

MARKETS: tuple[Market, ...] = ("on_demand", "spot", "reserved", "capacity_block")


def every_price() -> list[Price]:
    found = [
        price(row["instance"], market, region)
        for market in MARKETS
        for row in table("prices")[market]
        for region in row["regions"]
    ]
    return [one for one in found if one is not None]


@pytest.mark.parametrize(
    ("name", "usd"),
    [
        ("p4d.24xlarge", 21.9576),
        ("p4de.24xlarge", 27.4471),
        ("p5.48xlarge", 55.04),
        ("p5en.48xlarge", 63.296),
        ("p6-b200.48xlarge", 113.9328),
    ],
)
@pytest.mark.parametrize("region", ["us-east-1", "us-west-2"])
def test_on_demand_price_is_one_figure(name: str, usd: float, region: str) -> None:
    found = price(name, "on_demand", region)
    assert found is not None
    assert found.low_usd_per_hour == found.usd_per_hour == found.high_usd_per_hour == usd


def test_spot_price_is_the_median_of_a_range() -> None:
    found = price("p4d.24xlarge", "spot", "us-east-1")
    assert found is not None
    assert found.low_usd_per_hour == 6.53
    assert found.usd_per_hour == pytest.approx((8.01 + 11.79) / 2)
    assert found.high_usd_per_hour == 13.99


def test_zones_without_a_discount_count_in_the_spot_range() -> None:
    found = price("p5.48xlarge", "spot", "us-east-1")
    on_demand = price("p5.48xlarge", "on_demand", "us-east-1")
    assert found is not None
    assert on_demand is not None
    assert found.high_usd_per_hour == on_demand.usd_per_hour
    assert found.usd_per_hour == pytest.approx((18.68 + 18.73) / 2)


def test_a_capacity_block_price_shows_that_it_is_old() -> None:
    found = price("p5.48xlarge", "capacity_block", "us-east-1")
    assert found is not None
    assert found.date == date(2024, 12, 31)
    assert "valid to 2025-01-01" in found.source
    newer = price("p5e.48xlarge", "capacity_block", "us-east-2")
    assert newer is not None
    assert (newer.usd_per_hour, newer.date) == (39.8, date(2026, 1, 3))


@pytest.mark.parametrize("region", ["us-east-1", "us-east-2", "us-west-2", "eu-central-1"])
def test_a_year_reserved_has_a_price_in_several_regions(region: str) -> None:
    reserved, on_demand = price("p4d.24xlarge", "reserved", region), price("p4d.24xlarge", "on_demand", region)
    assert reserved is not None
    assert on_demand is not None
    assert 0.6 < reserved.usd_per_hour / on_demand.usd_per_hour < 0.7


def test_regions_are_told_for_an_instance_and_market() -> None:
    assert regions("p4d.24xlarge", "spot") == ["us-east-1", "us-west-2"]
    assert "eu-central-1" in regions("p4d.24xlarge", "on_demand")
    assert regions("no.such", "spot") == []


@pytest.mark.parametrize(
    ("name", "market", "region"),
    [
        ("p5e.48xlarge", "on_demand", "us-east-1"),  # sold in capacity blocks only
        ("p4d.24xlarge", "spot", "eu-west-1"),
        ("p4d.24xlarge", "capacity_block", "us-east-1"),
        ("p5.48xlarge", "reserved", "us-east-1"),  # sold with savings plans only
        ("c7i.xlarge", "on_demand", "us-east-1"),
        ("no.such", "spot", "us-east-1"),
    ],
)
def test_what_was_not_observed_has_no_price(name: str, market: Market, region: str) -> None:
    assert price(name, market, region) is None


def test_every_figure_has_a_source_a_past_date_and_a_known_instance() -> None:
    prices = every_price()
    assert len(prices) >= 250
    for found in prices:
        assert found.source
        assert date(2024, 1, 1) < found.date <= date(2026, 11, 20)
        assert instance(found.instance).name == found.instance


def test_the_range_holds_the_price() -> None:
    for found in every_price():
        assert found.low_usd_per_hour <= found.usd_per_hour <= found.high_usd_per_hour


def test_spot_and_reserved_never_cost_more_than_on_demand() -> None:
    for found in every_price():
        on_demand = price(found.instance, "on_demand", found.region)
        if found.market in ("spot", "reserved") and on_demand is not None:
            assert found.high_usd_per_hour <= on_demand.usd_per_hour


@pytest.mark.parametrize("region", ["af-south-1", "eu-west-9", "ap-southeast-7", "us-gov-west-1"])
def test_another_region_is_not_taken_for_a_misspelled_one(region: str) -> None:
    told = no_such_region(region)
    assert told.startswith(f"the catalog has no prices in {region}; known: ap-northeast-1, ")
    assert "us-west-2" in told


@pytest.mark.parametrize(
    ("region", "meant"),
    [("us-east1", "us-east-1"), ("us-eats-1", "us-east-1"), ("us-wst-2", "us-west-2"), ("US-EAST-1", "us-east-1?")],
)
def test_a_misspelled_region_is_told_from_another_one(region: str, meant: str) -> None:
    assert meant in no_such_region(region)


def test_a_region_with_prices_is_no_mistake() -> None:
    assert no_such_region("us-east-1") == ""
