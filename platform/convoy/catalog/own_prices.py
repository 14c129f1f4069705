"""Prices of one's own (`cluster.price`), which stand for those that are known of the same thing."""

from collections.abc import Sequence

from convoy.catalog.price_list import PriceList, newest_price
from convoy.catalog.prices import Market, Price, of_zones
from convoy.config.cluster import PriceConfig


def own_prices(told: PriceConfig, instance: str, market: Market, region: str) -> tuple[Price, ...]:
    """Of one machine in the market in which it is bought, and on demand where that is told too."""
    bought = of_zones(instance, market, region, [told.usd_per_hour], told.date, told.source)
    usd, day = told.usd_per_hour_on_demand, told.on_demand_date
    if usd is None or day is None or market == "on_demand":
        return (bought,)
    return (bought, of_zones(instance, "on_demand", region, [usd], day, told.on_demand_source))


def price_of(own: Sequence[Price], known: PriceList | None, instance: str, market: Market, region: str) -> Price | None:
    """One's own where there is one of exactly this, else the newest that is known; None: there is neither."""
    mine = (each for each in own if (each.instance, each.market, each.region) == (instance, market, region))
    return next(mine, None) or newest_price(known, instance, market, region)
