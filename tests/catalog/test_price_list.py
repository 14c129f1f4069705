"""Prices that were read from AWS, beside the catalog's."""

from datetime import UTC, date, datetime, timedelta

import pytest

from convoy.catalog.price_list import (
    Observed,
    PriceList,
    SpotHours,
    by_hour,
    merged,
    newest_price,
    price_list,
    regions_of,
    stale,
)
from convoy.catalog.prices import Market, newest_day, price
from convoy.config.errors import ConfigError

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)


def seen(usd: float, day: str = "2027-01-01", market: Market = "spot", instance: str = "p4d.24xlarge") -> Observed:
    return Observed(
        instance=instance, market=market, region="us-east-1", usd_per_hour=(usd, usd + 2), date=date.fromisoformat(day),
        source="AWS",
    )  # fmt: skip


def test_the_newer_price_counts_wherever_it_is_from() -> None:
    shipped = price("p4d.24xlarge", "spot", "us-east-1")
    assert shipped is not None
    assert newest_price(None, "p4d.24xlarge", "spot", "us-east-1") == shipped
    found = newest_price(merged(None, [seen(5.0)], NOW), "p4d.24xlarge", "spot", "us-east-1")
    assert found is not None
    assert (found.usd_per_hour, found.low_usd_per_hour, found.high_usd_per_hour) == (6.0, 5.0, 7.0)
    assert (found.date, found.source) == (date(2027, 1, 1), "AWS")
    old = merged(None, [seen(5.0, "2020-01-01")], NOW)
    assert newest_price(old, "p4d.24xlarge", "spot", "us-east-1") == shipped
    assert newest_price(old, "p4d.24xlarge", "spot", "eu-west-1") is None


def test_a_refresh_keeps_what_was_not_told_again() -> None:
    first = merged(None, [seen(5.0), seen(20.0, market="on_demand")], NOW)
    second = merged(first, [seen(4.0, "2027-01-02")], NOW)
    assert [(row.market, row.usd_per_hour[0], str(row.date)) for row in second.prices] == [
        ("on_demand", 20.0, "2027-01-01"),
        ("spot", 4.0, "2027-01-02"),
    ]


def test_a_list_comes_back_as_it_was() -> None:
    known = merged(None, [seen(5.0), seen(6.0, instance="g5.xlarge")], NOW)
    assert price_list(known.model_dump_json().encode(), "x") == known


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
        price_list(text.encode(), "/r/prices.json")
    assert str(error.value).startswith(told)
    assert str(error.value).endswith("convoy prices refresh")


@pytest.mark.parametrize("usd", [(), (0.0,), (1.0, -1.0)])
def test_what_is_no_price_is_refused(usd: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Observed(instance="a", market="spot", region="r", usd_per_hour=usd, date=date(2027, 1, 1), source="s")


def test_a_list_holds_what_it_was_made_of() -> None:
    assert PriceList(refreshed=NOW, prices=()).prices == ()


def test_a_price_that_is_low_at_night_is_low_at_those_hours() -> None:
    """One zone at 4.00 from 22:00 to 06:00 and at 10.00 else, one always at 20.00: medians of 12 and 15."""
    begin = NOW - timedelta(days=3, hours=12)
    at_night = [
        (begin + timedelta(hours=n), 4.0 if hour == 22 else 10.0)
        for n in range(24 * 4)
        if (hour := (begin + timedelta(hours=n)).hour) in (22, 6)
    ]
    zones = {"a": [(begin - timedelta(days=9), 4.0), *at_night], "b": [(begin - timedelta(days=9), 20.0)]}
    found = by_hour("p4d.24xlarge", "us-east-1", zones, NOW, 2, "AWS")
    assert found is not None
    assert (found.usd_per_hour[23], found.usd_per_hour[3], found.usd_per_hour[12]) == (12.0, 12.0, 15.0)
    assert (found.n, found.days, found.date) == (4, 2, NOW.date())


def test_prices_that_are_too_new_tell_of_no_hours() -> None:
    new = {"a": [(NOW - timedelta(hours=2), 4.0)]}
    assert by_hour("p4d.24xlarge", "us-east-1", new, NOW, 14, "AWS") is None


def test_hours_are_kept_with_the_prices_until_they_are_read_again() -> None:
    def hours(usd: float) -> SpotHours:
        return SpotHours(
            instance="a", region="r", usd_per_hour=(usd,) * 24, n=1, days=1, date=date(2027, 1, 1), source="AWS"
        )

    first = merged(None, [], NOW, [hours(1.0)])
    assert merged(first, [], NOW).spot_hours == (hours(1.0),)
    assert merged(first, [], NOW, [hours(2.0)]).spot_hours == (hours(2.0),)
    assert price_list(first.model_dump_json().encode(), "x") == first


def test_regions_are_those_of_the_catalog_and_those_that_were_refreshed() -> None:
    far = seen(5.0).model_copy(update={"region": "af-south-1"})
    assert regions_of(merged(None, [far], NOW), "p4d.24xlarge", "spot") == ["af-south-1", "us-east-1", "us-west-2"]


def test_a_price_is_old_beside_the_newest_that_is_known() -> None:
    newest = newest_day()
    assert not stale(newest - timedelta(days=366), None)
    assert stale(newest - timedelta(days=367), None)
    refreshed = PriceList(refreshed=NOW, prices=(seen(3.0, "2028-06-01"),))
    assert stale(newest, refreshed)
    assert not stale(date(2028, 6, 1), refreshed)
