"""Prices of instances, each with its date, region and source."""

import re
import statistics
from collections.abc import Sequence
from datetime import date
from typing import Literal, get_args

from pydantic import Field

from convoy.catalog.tables import table
from convoy.config.base import Frozen
from convoy.config.errors import nearest

Market = Literal["on_demand", "spot", "capacity_block", "reserved", "reserved_3y"]
"""How a machine is bought. reserved: for a year, reserved_3y: for three; nothing upfront, and paid also when unused."""

_REGION = re.compile(r"[a-z]{2}(-gov|-iso[a-z]?)?-(north|south)?(central|east|west|north|south)-[1-9]")
"""What AWS calls a region."""


class Price(Frozen):
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


def price(instance: str, market: Market, region: str) -> Price | None:
    """The newest price the catalog has for exactly this instance, market and region; None where it has none."""
    rows = [row for row in table("prices").get(market, ()) if row["instance"] == instance and region in row["regions"]]
    if not rows:
        return None
    newest = max(rows, key=lambda row: str(row["date"]))
    source = table("prices")["sources"][newest["source"]]
    return of_zones(instance, market, region, newest["usd_per_hour"], date.fromisoformat(newest["date"]), source)


def newest_day() -> date:
    """Of all prices of the catalog."""
    rows = (row for market in get_args(Market) for row in table("prices").get(market, ()))
    return date.fromisoformat(max(row["date"] for row in rows))


def regions(instance: str, market: Market) -> list[str]:
    """Those in which the catalog has a price of it, sorted."""
    rows = [row for row in table("prices").get(market, ()) if row["instance"] == instance]
    return sorted({region for row in rows for region in row["regions"]})


def no_such_region(region: str) -> str:
    """What to say where nothing has a price: the regions that have one, or the nearest of them where AWS calls none so;
    empty for one in which the catalog has prices."""
    known = {each for market in get_args(Market) for row in table("prices").get(market, ()) for each in row["regions"]}
    if region in known:
        return ""
    # af-south-1 is not ap-south-1 misspelled.
    hint = f"known: {', '.join(sorted(known))}" if _REGION.fullmatch(region) else nearest(region.lower(), known)
    return f"the catalog has no prices in {region}; {hint}"


def shipped() -> list[Price]:
    """Every price of the catalog, the newest of each."""
    keys = {
        (row["instance"], market, region)
        for market in get_args(Market)
        for row in table("prices").get(market, ())
        for region in row["regions"]
    }
    return [found for key in sorted(keys) if (found := price(*key)) is not None]


def of_zones(
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
