"""Prices that a user had read from AWS, beside those of the catalog: each with its day."""

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta

from pydantic import Field, ValidationError, field_validator

from convoy.catalog.prices import Market, Price, newest_day, of_zones, price, regions
from convoy.config.base import Frozen
from convoy.config.errors import ConfigError, first_mistake

FORMAT = 1

STALE_DAYS = 366
"""Prices of GPU machines change by a third within a year: one that is so much older than others tells little."""


class Observed(Frozen):
    """One instance type in one region and market, on one day."""

    instance: str
    market: Market
    region: str
    usd_per_hour: tuple[float, ...]
    """Of each availability zone that has it, or the one price there is."""
    date: date
    source: str

    @field_validator("usd_per_hour")
    @classmethod
    def _some(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if not values or min(values) <= 0:
            raise ValueError("must be prices of more than 0")
        return values

    def price(self) -> Price:
        return of_zones(self.instance, self.market, self.region, self.usd_per_hour, self.date, self.source)


class SpotHours(Frozen):
    """How the spot price of one type in one region depends on the hour of the day, over the days before `date`."""

    instance: str
    region: str
    usd_per_hour: tuple[float, ...] = Field(min_length=24, max_length=24)
    """Median over days and zones, by hour of the day in UTC."""
    n: int = Field(ge=1)
    """Prices of which each is the median: days times zones, at most."""
    days: int = Field(ge=1)
    date: date
    source: str


class PriceList(Frozen):
    """What one refresh found, and what was known before."""

    format: int = FORMAT
    refreshed: datetime
    """UTC."""
    prices: tuple[Observed, ...]
    spot_hours: tuple[SpotHours, ...] = ()


def price_list(text: bytes, place: str) -> PriceList:
    """What a file holds. place: of the file, for the error. Raises ConfigError for one that is no price list."""
    try:
        found = PriceList.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{place}: {first_mistake(error)}; make it anew: convoy prices refresh") from None
    if found.format != FORMAT:
        raise ConfigError(f"{place}: format = {found.format}: must be {FORMAT}; make it anew: convoy prices refresh")
    return found


def regions_of(known: PriceList | None, instance: str, market: Market) -> list[str]:
    """Those in which its price is known, sorted."""
    rows = known.prices if known is not None else ()
    told = {row.region for row in rows if (row.instance, row.market) == (instance, market)}
    return sorted({*told, *regions(instance, market)})


def newest_price(known: PriceList | None, instance: str, market: Market, region: str) -> Price | None:
    """The newest of what was refreshed and what the catalog has."""
    rows = known.prices if known is not None else ()
    fitting = [row.price() for row in rows if (row.instance, row.market, row.region) == (instance, market, region)]
    shipped = price(instance, market, region)
    return max([*fitting, *([shipped] if shipped else [])], key=lambda each: each.date, default=None)


def stale(day: date, known: PriceList | None) -> bool:
    """Whether a price of that day is more than a year older than the newest of any machine that was refreshed or that
    the catalog has."""
    return (max((newest_day(), *(row.date for row in (known.prices if known else ())))) - day).days > STALE_DAYS


def by_hour(
    instance: str,
    region: str,
    changes: Mapping[str, Sequence[tuple[datetime, float]]],
    now: datetime,
    days: int,
    source: str,
) -> SpotHours | None:
    """From the price changes of each zone, by time; None where some hour of the day has no price. The price of an hour
    is the one in force in its middle."""
    found: list[list[float]] = [[] for _ in range(24)]
    first = (now - timedelta(days=days)).replace(minute=30, second=0, microsecond=0)
    for told in changes.values():
        times, usd = [t for t, _ in told], [price for _, price in told]
        for n in range(24 * days):
            middle = first + timedelta(hours=n)
            at = bisect_right(times, middle) - 1
            if at >= 0:
                found[middle.hour].append(usd[at])
    if not all(found):
        return None
    hourly, n = tuple(statistics.median(each) for each in found), min(len(each) for each in found)
    return SpotHours(
        instance=instance, region=region, usd_per_hour=hourly, n=n, days=days, date=now.date(), source=source
    )


def merged(
    old: PriceList | None, new: Iterable[Observed], now: datetime, spot_hours: Iterable[SpotHours] = ()
) -> PriceList:
    """New prices in place of older ones of the same thing; what was not read again stays, with its own day."""
    rows = {(row.instance, row.market, row.region): row for row in (old.prices if old else ())}
    rows |= {(row.instance, row.market, row.region): row for row in new}
    hours = {(row.instance, row.region): row for row in [*(old.spot_hours if old else ()), *spot_hours]}
    ordered = tuple(hours[key] for key in sorted(hours))
    return PriceList(refreshed=now, prices=_sorted(rows.values()), spot_hours=ordered)


def _sorted(rows: Iterable[Observed]) -> tuple[Observed, ...]:
    ordered: Sequence[Observed] = sorted(rows, key=lambda row: (row.instance, row.market, row.region))
    return tuple(ordered)
