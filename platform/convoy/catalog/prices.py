"""Prices of instances, each with its date, region and source."""

import statistics
from datetime import date
from typing import Literal

from pydantic import Field

from convoy.catalog.table import table
from convoy.config.base import Frozen

Market = Literal["on_demand", "spot", "capacity_block"]
"""How a machine is bought."""


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
    rows = [row for row in table("prices")[market] if row["instance"] == instance and region in row["regions"]]
    if not rows:
        return None
    newest = max(rows, key=lambda row: str(row["date"]))
    zones = newest["usd_per_hour"]
    return Price(
        instance=instance,
        market=market,
        region=region,
        usd_per_hour=statistics.median(zones),
        low_usd_per_hour=min(zones),
        high_usd_per_hour=max(zones),
        date=date.fromisoformat(newest["date"]),
        source=table("prices")["sources"][newest["source"]],
    )
