"""Prices that a user had read from AWS, beside those of the catalog: each with its day."""

from collections.abc import Iterable, Sequence
from datetime import date, datetime

from pydantic import ValidationError, field_validator

from convoy.catalog.prices import Market, Price, of_zones, price
from convoy.config.base import Frozen
from convoy.config.errors import ConfigError

FORMAT = 1


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


class PriceList(Frozen):
    """What one refresh found, and what was known before."""

    format: int = FORMAT
    refreshed: datetime
    """UTC."""
    prices: tuple[Observed, ...]


def price_list(text: bytes, place: str) -> PriceList:
    """What a file holds. place: of the file, for the error. Raises ConfigError for one that is no price list."""
    try:
        found = PriceList.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(f"{place}: {where}: {first['msg']}; make it anew: convoy prices refresh") from None
    if found.format != FORMAT:
        raise ConfigError(f"{place}: format = {found.format}: must be {FORMAT}; make it anew: convoy prices refresh")
    return found


def newest_price(known: PriceList | None, instance: str, market: Market, region: str) -> Price | None:
    """The newest of what was refreshed and what the catalog has."""
    rows = known.prices if known is not None else ()
    fitting = [row.price() for row in rows if (row.instance, row.market, row.region) == (instance, market, region)]
    shipped = price(instance, market, region)
    return max([*fitting, *([shipped] if shipped else [])], key=lambda each: each.date, default=None)


def merged(old: PriceList | None, new: Iterable[Observed], now: datetime) -> PriceList:
    """New prices in place of older ones of the same thing; what was not read again stays, with its own day."""
    rows = {(row.instance, row.market, row.region): row for row in (old.prices if old else ())}
    rows |= {(row.instance, row.market, row.region): row for row in new}
    return PriceList(refreshed=now, prices=_sorted(rows.values()))


def _sorted(rows: Iterable[Observed]) -> tuple[Observed, ...]:
    ordered: Sequence[Observed] = sorted(rows, key=lambda row: (row.instance, row.market, row.region))
    return tuple(ordered)
