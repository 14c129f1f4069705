"""What machines cost: one book of prices, each with its date, region and source.

A `PriceBook` holds the prices shipped in the catalog, those of a `PriceList` that `convoy prices refresh` read from
AWS, and those that a configuration names for its own machines.
"""

import functools
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Literal, get_args

from pydantic import Field, PositiveFloat, ValidationError, model_validator

from convoy.catalog import load_table
from convoy.config.base import FrozenConfig
from convoy.config.cluster import ClusterConfig, PriceConfig
from convoy.config.errors import ConfigError, first_mistake, name_hint

FORMAT = 1
"""Of a price list."""

STALE_DAYS = 366
"""Prices of GPU machines change by a third within a year: one that is so much older than others says little."""

Market = Literal["on_demand", "spot", "capacity_block", "reserved", "reserved_3y"]
"""How a machine is bought. reserved: for a year, reserved_3y: for three; nothing upfront, and paid also when unused."""

MARKETS: tuple[Market, ...] = get_args(Market)

_REGION = re.compile(r"[a-z]{2}(-gov|-iso[a-z]?)?-(north|south)?(central|east|west|north|south)-[1-9]")
"""What AWS calls a region."""


class Price(FrozenConfig):
    """US dollars for one Linux instance and hour, as observed on one day."""

    instance: str
    """E.g. `p4d.24xlarge`."""
    market: Market
    region: str
    """E.g. `us-east-1`."""
    usd_per_hour: float = Field(gt=0)
    """Median over the availability zones."""
    low_usd_per_hour: float = Field(gt=0)
    """Cheapest zone."""
    high_usd_per_hour: float = Field(gt=0)
    """Dearest zone; on spot this can be the on-demand price."""
    date: date
    """Day of the observation, or the day it is at least as new as where the source names none."""
    source: str
    """Where the figure was published."""


class ObservedPrice(FrozenConfig):
    """One instance type in one region and market, on one day."""

    instance: str
    market: Market
    region: str
    usd_per_hour: tuple[PositiveFloat, ...] = Field(min_length=1)
    """Of each availability zone that has it, or the one price there is."""
    date: date
    source: str

    def price(self) -> Price:
        return price_over_zones(self.instance, self.market, self.region, self.usd_per_hour, self.date, self.source)


class PriceList(FrozenConfig):
    """What refreshes read from AWS: the newest price of each machine, market and region."""

    format: int = FORMAT
    refreshed: datetime
    """UTC."""
    prices: tuple[ObservedPrice, ...]

    @model_validator(mode="before")
    @classmethod
    def _drop_retired_keys(cls, values: Any) -> Any:
        """Files of earlier versions also hold spot prices by hour of the day."""
        if isinstance(values, dict):
            return {name: value for name, value in values.items() if name != "spot_hours"}
        return values


def parse_price_list(text: bytes, path: str) -> PriceList:
    """What a file holds. path: of the file, for the error. Raises ConfigError for one that is no price list."""
    try:
        prices = PriceList.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_mistake(error)}; make it anew: convoy prices refresh") from None
    if prices.format != FORMAT:
        raise ConfigError(f"{path}: format = {prices.format}: must be {FORMAT}; make it anew: convoy prices refresh")
    return prices


@dataclass(frozen=True)
class PriceBook:
    """Every price that is known where a command or a step begins; made there once, and passed down."""

    refreshed: PriceList | None = None
    """What `convoy prices refresh` wrote below the root."""
    own: tuple[Price, ...] = ()
    """Prices that a configuration names, as `configured_prices` reads them: they count before all others."""

    def for_cluster(self, cluster: ClusterConfig) -> "PriceBook":
        """With the price that this configuration names for its machines, and no other own one."""
        if cluster.price is None or cluster.instance_type is None:
            return replace(self, own=())
        own = configured_prices(cluster.price, cluster.instance_type, cluster.market, cluster.region)
        return replace(self, own=own)

    def price(self, instance: str, market: Market, region: str) -> Price | None:
        """The configuration's own price of exactly this, else the newest that was refreshed or shipped, if any."""
        key = instance, market, region
        own = next((price for price in self.own if _key(price) == key), None)
        newest = max((row for row in self._rows if _key(row) == key), key=lambda row: row.date, default=None)
        return own or (newest.price() if newest else None)

    def regions(self, instance: str, market: Market) -> list[str]:
        """Those in which its price was refreshed or shipped, sorted."""
        return sorted({row.region for row in self._rows if (row.instance, row.market) == (instance, market)})

    def prices(self) -> list[Price]:
        """The price of each machine, market and region."""
        keys = sorted({*map(_key, self._rows), *map(_key, self.own)})
        return [price for key in keys if (price := self.price(*key)) is not None]

    def is_stale(self, day: date) -> bool:
        """Whether a price of that day is more than a year older than the newest of any machine that was refreshed or
        shipped."""
        return (max(row.date for row in self._rows) - day).days > STALE_DAYS

    @property
    def _rows(self) -> tuple[ObservedPrice, ...]:
        """Refreshed ones first: they count where the catalog has one of the same day."""
        return (*(self.refreshed.prices if self.refreshed is not None else ()), *_shipped_prices())


def price_over_zones(
    instance: str, market: Market, region: str, usd_per_hour: Sequence[float], day: date, source: str
) -> Price:
    """From the prices of all availability zones that have it."""
    return Price(
        instance=instance,
        market=market,
        region=region,
        usd_per_hour=statistics.median(usd_per_hour),
        low_usd_per_hour=min(usd_per_hour),
        high_usd_per_hour=max(usd_per_hour),
        date=day,
        source=source,
    )


SHIPPED = PriceBook()
"""The catalog's prices alone. Where a configuration names its own they count too, as with any book."""


def configured_prices(price: PriceConfig, instance: str, market: Market, region: str) -> tuple[Price, ...]:
    """Of one machine in the market in which it is bought, and on demand where the configuration names that too."""
    bought = price_over_zones(instance, market, region, [price.usd_per_hour], price.date, price.source)
    usd, day = price.usd_per_hour_on_demand, price.on_demand_date
    if usd is None or day is None or market == "on_demand":
        return (bought,)
    return (bought, price_over_zones(instance, "on_demand", region, [usd], day, price.on_demand_source))


def region_hint(region: str) -> str:
    """What to say where nothing has a price: the regions that have one, or the nearest of them where AWS calls none so;
    empty for one in which the catalog has prices."""
    regions = {row.region for row in _shipped_prices()}
    if region in regions:
        return ""
    # af-south-1 is not ap-south-1 misspelled.
    hint = f"known: {', '.join(sorted(regions))}" if _REGION.fullmatch(region) else name_hint(region.lower(), regions)
    return f"the catalog has no prices in {region}; {hint}"


def merge_prices(old: PriceList | None, new: Iterable[ObservedPrice], now: datetime) -> PriceList:
    """New prices in place of older ones of the same thing; what was not read again stays, with its own day."""
    prices = {_key(row): row for row in [*(old.prices if old else ()), *new]}
    return PriceList(refreshed=now, prices=tuple(prices[key] for key in sorted(prices)))


def _key(row: Price | ObservedPrice) -> tuple[str, Market, str]:
    return row.instance, row.market, row.region


@functools.cache
def _shipped_prices() -> tuple[ObservedPrice, ...]:
    """The catalog's rows, one for each region."""
    book = load_table("prices")
    return tuple(
        ObservedPrice(
            instance=row["instance"], market=market, region=region, usd_per_hour=row["usd_per_hour"],
            date=date.fromisoformat(row["date"]), source=book["sources"][row["source"]],
        )
        for market in MARKETS
        for row in book.get(market, ())
        for region in row["regions"]
    )  # fmt: skip
