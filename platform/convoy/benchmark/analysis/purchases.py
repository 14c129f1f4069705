"""Ways and places to buy the machines of a benchmark, and their prices relative to the first lever. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convoy.benchmark.analysis.model import Lever
from convoy.catalog.prices import Market, Price, PriceBook

OFF_PEAK_HOURS = 8
"""In a row, in which machines run each day."""

_MOVABLE: tuple[Market, ...] = ("on_demand", "spot")

COMMITTED: dict[Market, str] = {
    "reserved": "paid for a year, around the clock",
    "reserved_3y": "paid for three years, around the clock",
    "capacity_block": "paid ahead for whole days, which are to be had; ends when the block ends",
}


class Known(NamedTuple):
    """A way to buy the machines, beside the one of the first lever."""

    name: str
    ratio: float
    """Of the price for a machine and hour."""
    interrupted: bool
    assumes: str
    days: float = 1.0
    """It takes so many times as many days."""


def bought(instance: str, region: str, now: float, prices: PriceBook) -> Iterator[Known | Lever]:
    """Each other way and place to buy, or why it has no price. now: USD for a machine and hour."""
    yield from _spot(instance, region, now, prices)
    for market in _MOVABLE:
        elsewhere = _cheapest_elsewhere(instance, market, region, prices)
        words = f"{in_words(market)} in another region"
        if elsewhere is None:
            yield _unknown(words, instance, market, "any other region")
            continue
        assumes = "data and checkpoints are kept there; moving them is not in it"
        if market == "spot":
            assumes = f"{assumes}; {_breaks_even(elsewhere.usd_per_hour, now)}"
        yield _known(elsewhere, elsewhere.usd_per_hour, now, f"{words}: {elsewhere.region}", assumes)
    for market, assumes in COMMITTED.items():
        price = prices.price(instance, market, region)
        words = f"{in_words(market)} in {region}"
        if price is None:
            yield _unknown(words, instance, market, region)
        else:
            least = f"pays if used for {price.usd_per_hour / now:.0%} of it or more"
            yield _known(price, price.usd_per_hour, now, words, f"{assumes}; {least}")


def _spot(instance: str, region: str, now: float, prices: PriceBook) -> Iterator[Known | Lever]:
    """In the region where the machines are: around the clock, in one zone, and only when it is cheapest."""
    spot, hours = prices.price(instance, "spot", region), prices.spot_hours(instance, region)
    if spot is None:
        yield _unknown(f"spot in {region}", instance, "spot", region)
        return
    usd, least = spot.usd_per_hour, spot.low_usd_per_hour
    yield _known(spot, usd, now, f"spot in {region}", _breaks_even(usd, now))
    if least < usd:
        assumes = f"all machines are to be had in one zone; {_breaks_even(least, now)}"
        yield _known(spot, least, now, f"spot in the cheapest zone of {region}", assumes)
    if spot in prices.own:
        why = "spot has a price of its own (cluster.price), which does not tell how it moves with the hour"
        yield Lever(name=f"spot off-peak in {region}", assumes="", why=why)
        return
    if hours is None:
        why = "no history of spot prices by the hour of the day (convoy prices refresh keeps one)"
        yield Lever(name=f"spot off-peak in {region}", assumes="", why=why)
        return
    start, ratio = off_peak(hours.usd_per_hour)
    end, days = (start + OFF_PEAK_HOURS) % 24, 24 / OFF_PEAK_HOURS
    assumes = (
        f"the machines come back each day, and training takes {days:g} times the days; medians of {hours.days} days "
        f"to {hours.date}, n = {hours.n} for each hour; {_breaks_even(usd * ratio, now)}"
    )
    name = f"spot off-peak in {region}: {start:02d}:00 to {end:02d}:00 UTC"
    yield _known(spot, usd * ratio, now, name, assumes)._replace(days=days)


def off_peak(usd_per_hour: Sequence[float]) -> tuple[int, float]:
    """The first of the cheapest hours in a row, and what they cost over all 24."""
    ring = [*usd_per_hour, *usd_per_hour]
    starts = [sum(ring[start : start + OFF_PEAK_HOURS]) for start in range(24)]
    start = min(range(24), key=lambda i: (starts[i], i))
    return start, starts[start] / OFF_PEAK_HOURS / (sum(usd_per_hour) / 24)


def _known(price: Price, usd_per_hour: float, now: float, name: str, assumes: str) -> Known:
    dated = f"{assumes}; price of {price.date}, {price.source}"
    return Known(name, usd_per_hour / now, price.market == "spot", dated)


def _unknown(name: str, instance: str, market: Market, region: str) -> Lever:
    return Lever(name=name, assumes="", why=f"no {in_words(market)} price of {instance} in {region} is known")


def _breaks_even(usd_per_hour: float, now: float) -> str:
    if usd_per_hour >= now:
        return "no interruptions"
    return f"no interruptions; it stays cheaper until they take {1 - usd_per_hour / now:.0%} of the time"


def _cheapest_elsewhere(instance: str, market: Market, region: str, prices: PriceBook) -> Price | None:
    regions = [each for each in prices.regions(instance, market) if each != region]
    elsewhere = [price for each in regions if (price := prices.price(instance, market, each)) is not None]
    return min(elsewhere, key=lambda price: price.usd_per_hour, default=None)


def in_words(market: str) -> str:
    """As levers name it."""
    return {"reserved": "reserved for a year", "reserved_3y": "reserved for 3 years"}.get(
        market, market.replace("_", " ")
    )
