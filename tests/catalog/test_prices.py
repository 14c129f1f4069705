"""A price has a date, a region and a source, or there is none."""

import json
from datetime import UTC, date, datetime, timedelta

import pytest

from convoy.catalog.instances import instance
from convoy.catalog.prices import (
    SHIPPED,
    Market,
    ObservedPrice,
    PriceBook,
    PriceList,
    configured_prices,
    merge_prices,
    parse_price_list,
    region_hint,
)
from convoy.config.cluster import PriceConfig
from convoy.config.errors import ConfigError

P4D, EAST = "p4d.24xlarge", "us-east-1"
OWN = PriceConfig(usd_per_hour=7.5, date=date(2026, 1, 1), source="our contract")
BOTH = OWN.model_copy(update={"usd_per_hour_on_demand": 15.0, "on_demand_date": date(2026, 2, 2)})
NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)


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
    found = SHIPPED.price(name, "on_demand", region)
    assert found is not None
    assert found.low_usd_per_hour == found.usd_per_hour == found.high_usd_per_hour == usd


def test_spot_price_is_the_median_of_a_range() -> None:
    found = SHIPPED.price("p4d.24xlarge", "spot", "us-east-1")
    assert found is not None
    assert found.low_usd_per_hour == 6.53
    assert found.usd_per_hour == pytest.approx((8.01 + 11.79) / 2)
    assert found.high_usd_per_hour == 13.99


def test_zones_without_a_discount_count_in_the_spot_range() -> None:
    found = SHIPPED.price("p5.48xlarge", "spot", "us-east-1")
    on_demand = SHIPPED.price("p5.48xlarge", "on_demand", "us-east-1")
    assert found is not None
    assert on_demand is not None
    assert found.high_usd_per_hour == on_demand.usd_per_hour
    assert found.usd_per_hour == pytest.approx((18.68 + 18.73) / 2)


def test_a_capacity_block_price_shows_that_it_is_old() -> None:
    found = SHIPPED.price("p5.48xlarge", "capacity_block", "us-east-1")
    assert found is not None
    assert found.date == date(2024, 12, 31)
    assert "valid to 2025-01-01" in found.source
    newer = SHIPPED.price("p5e.48xlarge", "capacity_block", "us-east-2")
    assert newer is not None
    assert (newer.usd_per_hour, newer.date) == (39.8, date(2026, 1, 3))


@pytest.mark.parametrize("region", ["us-east-1", "us-east-2", "us-west-2", "eu-central-1"])
def test_a_year_reserved_has_a_price_in_several_regions(region: str) -> None:
    reserved, on_demand = (
        SHIPPED.price("p4d.24xlarge", "reserved", region),
        SHIPPED.price("p4d.24xlarge", "on_demand", region),
    )
    assert reserved is not None
    assert on_demand is not None
    assert 0.6 < reserved.usd_per_hour / on_demand.usd_per_hour < 0.7


def test_regions_are_told_for_an_instance_and_market() -> None:
    assert SHIPPED.regions("p4d.24xlarge", "spot") == ["us-east-1", "us-west-2"]
    assert "eu-central-1" in SHIPPED.regions("p4d.24xlarge", "on_demand")
    assert SHIPPED.regions("no.such", "spot") == []


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
    assert SHIPPED.price(name, market, region) is None


def test_every_figure_has_a_source_a_past_date_and_a_known_instance() -> None:
    prices = SHIPPED.prices()
    assert len(prices) >= 250
    for found in prices:
        assert found.source
        assert date(2024, 1, 1) < found.date <= date(2026, 11, 20)
        assert instance(found.instance).name == found.instance


def test_the_range_holds_the_price() -> None:
    for found in SHIPPED.prices():
        assert found.low_usd_per_hour <= found.usd_per_hour <= found.high_usd_per_hour


def test_spot_and_reserved_never_cost_more_than_on_demand() -> None:
    for found in SHIPPED.prices():
        on_demand = SHIPPED.price(found.instance, "on_demand", found.region)
        if found.market in ("spot", "reserved") and on_demand is not None:
            assert found.high_usd_per_hour <= on_demand.usd_per_hour


@pytest.mark.parametrize("region", ["af-south-1", "eu-west-9", "ap-southeast-7", "us-gov-west-1"])
def test_another_region_is_not_taken_for_a_misspelled_one(region: str) -> None:
    told = region_hint(region)
    assert told.startswith(f"the catalog has no prices in {region}; known: ap-northeast-1, ")
    assert "us-west-2" in told


@pytest.mark.parametrize(
    ("region", "meant"),
    [("us-east1", "us-east-1"), ("us-eats-1", "us-east-1"), ("us-wst-2", "us-west-2"), ("US-EAST-1", "us-east-1?")],
)
def test_a_misspelled_region_is_told_from_another_one_and_one_with_prices_is_none(region: str, meant: str) -> None:
    assert meant in region_hint(region)
    assert region_hint(meant.removesuffix("?")) == ""


def test_one_s_own_counts_though_the_catalog_s_is_newer() -> None:
    found = PriceBook(own=configured_prices(OWN, P4D, "spot", EAST)).price(P4D, "spot", EAST)
    assert found is not None
    assert (found.usd_per_hour, found.low_usd_per_hour, found.high_usd_per_hour) == (7.5, 7.5, 7.5)
    assert (found.date, found.source) == (date(2026, 1, 1), "our contract")


def test_other_machines_markets_and_regions_have_the_price_that_is_known() -> None:
    book = PriceBook(own=configured_prices(OWN, P4D, "spot", EAST))
    assert book.price(P4D, "on_demand", EAST) == SHIPPED.price(P4D, "on_demand", EAST)
    assert book.price(P4D, "spot", "us-west-2") == SHIPPED.price(P4D, "spot", "us-west-2")
    assert book.price("p5.48xlarge", "spot", EAST) == SHIPPED.price("p5.48xlarge", "spot", EAST)
    assert book.price(P4D, "spot", "af-south-1") is None


def test_what_it_costs_on_demand_is_one_s_own_too() -> None:
    spot, on_demand = configured_prices(BOTH, P4D, "spot", EAST)
    assert (spot.market, spot.usd_per_hour) == ("spot", 7.5)
    assert (on_demand.market, on_demand.usd_per_hour, on_demand.date) == ("on_demand", 15.0, date(2026, 2, 2))
    assert configured_prices(BOTH, P4D, "on_demand", EAST)[0].usd_per_hour == 7.5


def observed(
    usd: float, day: str = "2027-01-01", market: Market = "spot", instance: str = "p4d.24xlarge"
) -> ObservedPrice:
    return ObservedPrice(
        instance=instance, market=market, region="us-east-1", usd_per_hour=(usd, usd + 2), date=date.fromisoformat(day),
        source="AWS",
    )  # fmt: skip


def test_the_newer_price_counts_wherever_it_is_from() -> None:
    shipped = SHIPPED.price("p4d.24xlarge", "spot", "us-east-1")
    assert shipped is not None
    assert SHIPPED.price("p4d.24xlarge", "spot", "us-east-1") == shipped
    found = PriceBook(merge_prices(None, [observed(5.0)], NOW)).price("p4d.24xlarge", "spot", "us-east-1")
    assert found is not None
    assert (found.usd_per_hour, found.low_usd_per_hour, found.high_usd_per_hour) == (6.0, 5.0, 7.0)
    assert (found.date, found.source) == (date(2027, 1, 1), "AWS")
    old = PriceBook(merge_prices(None, [observed(5.0, "2020-01-01")], NOW))
    assert old.price("p4d.24xlarge", "spot", "us-east-1") == shipped
    assert old.price("p4d.24xlarge", "spot", "eu-west-1") is None


def test_a_refresh_keeps_what_was_not_told_again() -> None:
    first = merge_prices(None, [observed(5.0), observed(20.0, market="on_demand")], NOW)
    second = merge_prices(first, [observed(4.0, "2027-01-02")], NOW)
    assert [(row.market, row.usd_per_hour[0], str(row.date)) for row in second.prices] == [
        ("on_demand", 20.0, "2027-01-01"),
        ("spot", 4.0, "2027-01-02"),
    ]


def test_a_list_comes_back_as_it_was() -> None:
    known = merge_prices(None, [observed(5.0), observed(6.0, instance="g5.xlarge")], NOW)
    assert parse_price_list(known.model_dump_json().encode(), "x") == known


def test_spot_prices_by_hour_of_an_earlier_version_are_ignored() -> None:
    known = merge_prices(None, [observed(5.0)], NOW)
    hours = {"instance": P4D, "region": EAST, "usd_per_hour": [1.0] * 24, "n": 28, "days": 14, "date": "2027-01-01"}
    text = json.dumps({**known.model_dump(mode="json"), "spot_hours": [{**hours, "source": "AWS"}]})
    assert parse_price_list(text.encode(), "x") == known


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "/r/prices.json: the file: Invalid JSON"),
        ('{"format": 2, "refreshed": "2027-01-01T00:00:00Z", "prices": []}', "/r/prices.json: format = 2: must be 1"),
        ('{"refreshed": "2027-01-01T00:00:00Z"}', "/r/prices.json: prices: Field required"),
    ],
)
def test_a_file_that_is_no_list_is_told(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_price_list(text.encode(), "/r/prices.json")
    assert str(error.value).startswith(told)
    assert str(error.value).endswith("convoy prices refresh")


@pytest.mark.parametrize("usd", [(), (0.0,), (1.0, -1.0)])
def test_what_is_no_price_is_refused(usd: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"greater than 0|at least 1 item"):
        ObservedPrice(instance="a", market="spot", region="r", usd_per_hour=usd, date=date(2027, 1, 1), source="s")


def test_regions_are_those_of_the_catalog_and_those_that_were_refreshed() -> None:
    far = observed(5.0).model_copy(update={"region": "af-south-1"})
    assert PriceBook(merge_prices(None, [far], NOW)).regions(P4D, "spot") == [
        "af-south-1",
        "us-east-1",
        "us-west-2",
    ]


def test_a_price_is_old_beside_the_newest_that_is_known() -> None:
    newest = max(price.date for price in SHIPPED.prices())
    assert not SHIPPED.is_stale(newest - timedelta(days=366))
    assert SHIPPED.is_stale(newest - timedelta(days=367))
    refreshed = PriceBook(PriceList(refreshed=NOW, prices=(observed(3.0, "2028-06-01"),)))
    assert refreshed.is_stale(newest)
    assert not refreshed.is_stale(date(2028, 6, 1))
