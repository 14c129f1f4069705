"""What the same tokens would cost on machines that are bought in another way or place. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from convoy.benchmark.analysis.model import CostFigures, GroupFigures, Lever
from convoy.catalog.prices import Market, Price, PriceBook
from convoy.stats.interval import exact

TOKENS = 1e12

OFF_PEAK_HOURS = 8
"""Consecutive hours in which machines run each day."""

_MOVABLE: tuple[Market, ...] = ("on_demand", "spot")

_COMMITTED: dict[Market, str] = {
    "reserved": "paid for a year, around the clock",
    "reserved_3y": "paid for three years, around the clock",
    "capacity_block": "paid ahead for whole days, which must be available; ends when the block ends",
}


class Purchase(NamedTuple):
    """A way and a place to buy a machine."""

    name: str
    usd_per_hour: float | None
    assumes: str
    """Without a price: why there is none."""
    days: float = 1.0
    """Factor by which a training takes more days."""


def levers(cost: CostFigures, group: GroupFigures, prices: PriceBook) -> tuple[Lever, ...]:
    """Empty where the machines have no price. All are compared with the first: on demand, if that has a price. group:
    of the costed case."""
    name, region = group.hardware.instance_type, group.region
    if not cost.offers or name is None or region is None:
        return ()
    base = next((offer for offer in cost.offers if offer.market == "on_demand"), cost.offers[0])
    usd = base.usd_per_hour / group.hardware.nodes
    first = Purchase(f"{market_name(base.market)} in {region}", usd, "what the rows below are compared with")
    configured = f"{market_name(cost.market or '')} in {region}"
    rows = []
    for each in (first, *purchases(name, region, usd, replace(prices, own=group.prices))):
        title = f"{each.name} (as configured)" if each.name == configured else each.name
        if each.usd_per_hour is None:
            rows.append(Lever(name=title, assumes="", why=each.assumes))
            continue
        ratio = each.usd_per_hour / usd
        row = Lever(
            name=title,
            ratio=exact(ratio),
            usd_per_million_tokens=base.usd_per_million_tokens.scaled(ratio),
            seconds_per_trillion_tokens=TOKENS / cost.tokens_per_second.estimate * each.days,
            assumes=each.assumes,
        )
        rows.append(row)
    return tuple(rows)


def purchases(instance: str, region: str, now: float, prices: PriceBook) -> Iterator[Purchase]:
    """Each other way and place to buy. now: USD for a machine and hour."""
    spot, hours = prices.price(instance, "spot", region), prices.spot_hours(instance, region)
    yield _purchase(spot, f"spot in {region}", instance, "no interruptions", now)
    if spot is not None and hours is not None and spot not in prices.own:
        start, share = cheapest_hours(hours.usd_per_hour)
        title = f"spot in {region}, {start:02d}:00 to {(start + OFF_PEAK_HOURS) % 24:02d}:00 UTC"
        assumes = f"the machines are available each day; medians of {hours.days} days to {hours.date}, n = {hours.n}"
        yield Purchase(title, spot.usd_per_hour * share, assumes, days=24 / OFF_PEAK_HOURS)
    for market in _MOVABLE:
        elsewhere = [each for each in prices.regions(instance, market) if each != region]
        offers = [price for each in elsewhere if (price := prices.price(instance, market, each)) is not None]
        cheapest = min(offers, key=lambda price: price.usd_per_hour, default=None)
        title = f"{market_name(market)} in {cheapest.region if cheapest else 'another region'}"
        assumes = "data and checkpoints are there" + ("; no interruptions" if market == "spot" else "")
        yield _purchase(cheapest, title, instance, assumes, now)
    for market, assumes in _COMMITTED.items():
        price = prices.price(instance, market, region)
        yield _purchase(price, f"{market_name(market)} in {region}", instance, assumes, now)


def _purchase(price: Price | None, name: str, instance: str, assumes: str, now: float) -> Purchase:
    if price is None:
        return Purchase(name, None, f"no price of {instance} is known")
    usd, dated = price.usd_per_hour, f"price of {price.date}, {price.source}"
    if usd < now and price.market == "spot":
        assumes = f"{assumes}: it stays cheaper until they take {1 - usd / now:.0%} of the time"
    elif price.market in _COMMITTED:
        assumes = f"{assumes}; pays if used for {usd / now:.0%} of it or more"
    return Purchase(name, usd, f"{assumes}; {dated}")


def cheapest_hours(usd_per_hour: Sequence[float]) -> tuple[int, float]:
    """The first of the cheapest consecutive hours, and their mean price over that of the whole day."""
    ring = [*usd_per_hour, *usd_per_hour]
    means = [fmean(ring[start : start + OFF_PEAK_HOURS]) for start in range(24)]
    start = min(range(24), key=lambda i: means[i])
    return start, means[start] / fmean(usd_per_hour)


def market_name(market: str) -> str:
    """As levers name it."""
    names = {"reserved": "reserved for a year", "reserved_3y": "reserved for 3 years"}
    return names.get(market, market.replace("_", " "))
