"""What would make the same tokens cheaper, each thing alone and what goes together. Pure.

A machine is bought in one way and in one place, so those are alternatives, of which the cheapest counts; what changes
the speed multiplies with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from convoy.benchmark.analysis.model import CaseFigures, CostFigures, GroupFigures, Lever
from convoy.benchmark.results.case import key_of
from convoy.catalog.prices import Market, Price, PriceBook
from convoy.stats.interval import Interval, exact, product

THROUGHPUT, OURS = "throughput", "ours"
"""Suite and case by which precision and accumulation are judged."""

TOKENS = 1e12

PRECISION, ACCUMULATION = "bf16 rather than fp32", "accumulation"

BASE: Market = "on_demand"
"""The market that the others are compared with, where it has a price."""

OFF_PEAK_HOURS = 8
"""In a row, in which machines run each day."""

_MOVABLE: tuple[Market, ...] = ("on_demand", "spot")

_COMMITTED: dict[Market, str] = {
    "reserved": "paid for a year, around the clock",
    "reserved_3y": "paid for three years, around the clock",
    "capacity_block": "paid ahead for whole days, which are to be had; ends when the block ends",
}


class Purchase(NamedTuple):
    """A way and a place to buy the machines."""

    name: str
    ratio: float | None = None
    """Price for a machine and hour over that of the first lever; None: `why` says."""
    interrupted: bool = False
    assumes: str = ""
    days: float = 1.0
    """Factor by which it takes more days."""
    why: str = ""


class Now(NamedTuple):
    """The first lever: on demand in the machines' region, where that has a price."""

    usd_per_million_tokens: Interval
    tokens_per_second: float

    def lever(self, name: str, assumes: str, price: float, cost: Interval | None = None, days: float = 1.0) -> Lever:
        """price: ratio of prices. cost: ratio of what tokens cost by a change of speed. days: as of `Purchase`."""
        slower = exact(1.0) if cost is None else cost
        ratio = product(exact(price), slower)
        return Lever(
            name=name,
            ratio=ratio,
            usd_per_million_tokens=product(self.usd_per_million_tokens, ratio),
            seconds_per_trillion_tokens=TOKENS / self.tokens_per_second * slower.estimate * days,
            assumes=assumes,
        )


def levers(
    cost: CostFigures, group: GroupFigures, groups: Sequence[GroupFigures], prices: PriceBook
) -> tuple[Lever, ...]:
    """None where the machines have no price. All others are compared with the first. group: of the costed case."""
    name, region = group.hardware.instance_type, group.region
    if not cost.offers or name is None or region is None:
        return ()
    base = next((offer for offer in cost.offers if offer.market == BASE), cost.offers[0])
    now = Now(base.usd_per_million_tokens, cost.tokens_per_second.estimate)
    usd_per_hour = base.usd_per_hour / group.hardware.nodes
    bought = list(purchases(name, region, usd_per_hour, replace(prices, own=group.prices)))
    speeds = list(_speeds(cost.case, group, groups, now))
    configured = "" if cost.market is None else f"{market_name(cost.market)} in {region}"
    first = f"{market_name(base.market)} in {region}"
    return (
        now.lever(_marked(first, configured, "what the rows below are compared with"), "", 1.0),
        *(
            now.lever(_marked(each.name, configured), each.assumes, each.ratio, days=each.days)
            for each in bought
            if each.ratio is not None
        ),
        *(Lever(name=each.name, assumes="", why=each.why) for each in bought if each.ratio is None),
        *speeds,
        *_together(bought, speeds, now),
    )


def purchases(instance: str, region: str, now: float, prices: PriceBook) -> Iterator[Purchase]:
    """Each other way and place to buy. now: USD for a machine and hour."""
    yield from _spot(instance, region, now, prices)
    for market in _MOVABLE:
        name, elsewhere = (
            f"{market_name(market)} in another region",
            _cheapest_elsewhere(instance, market, region, prices),
        )
        if elsewhere is None:
            yield _unpriced(name, instance, market, "any other region")
            continue
        assumes = "data and checkpoints are kept there; moving them is not in it"
        if market == "spot":
            assumes = f"{assumes}; {_breaks_even(elsewhere.usd_per_hour, now)}"
        yield _priced(elsewhere, elsewhere.usd_per_hour, now, f"{name}: {elsewhere.region}", assumes)
    for market, assumes in _COMMITTED.items():
        price, name = prices.price(instance, market, region), f"{market_name(market)} in {region}"
        if price is None:
            yield _unpriced(name, instance, market, region)
        else:
            least = f"pays if used for {price.usd_per_hour / now:.0%} of it or more"
            yield _priced(price, price.usd_per_hour, now, name, f"{assumes}; {least}")


def _spot(instance: str, region: str, now: float, prices: PriceBook) -> Iterator[Purchase]:
    """In the region where the machines are: around the clock, in one zone, and only when it is cheapest."""
    spot, hours = prices.price(instance, "spot", region), prices.spot_hours(instance, region)
    if spot is None:
        yield _unpriced(f"spot in {region}", instance, "spot", region)
        return
    usd, least, off_peak = spot.usd_per_hour, spot.low_usd_per_hour, f"spot off-peak in {region}"
    yield _priced(spot, usd, now, f"spot in {region}", _breaks_even(usd, now))
    if least < usd:
        assumes = f"all machines are to be had in one zone; {_breaks_even(least, now)}"
        yield _priced(spot, least, now, f"spot in the cheapest zone of {region}", assumes)
    if spot in prices.own:
        why = "spot has a price of its own (cluster.price), which does not tell how it moves with the hour"
        yield Purchase(off_peak, why=why)
    elif hours is None:
        yield Purchase(
            off_peak, why="no history of spot prices by the hour of the day (convoy prices refresh keeps one)"
        )
    else:
        start, ratio = cheapest_hours(hours.usd_per_hour)
        end, days = (start + OFF_PEAK_HOURS) % 24, 24 / OFF_PEAK_HOURS
        assumes = (
            f"the machines come back each day, and training takes {days:g} times the days; medians of {hours.days} "
            f"days to {hours.date}, n = {hours.n} for each hour; {_breaks_even(usd * ratio, now)}"
        )
        name = f"{off_peak}: {start:02d}:00 to {end:02d}:00 UTC"
        yield _priced(spot, usd * ratio, now, name, assumes)._replace(days=days)


def cheapest_hours(usd_per_hour: Sequence[float]) -> tuple[int, float]:
    """The first of the cheapest hours in a row, and what they cost over all 24."""
    ring = [*usd_per_hour, *usd_per_hour]
    starts = [sum(ring[start : start + OFF_PEAK_HOURS]) for start in range(24)]
    start = min(range(24), key=lambda i: (starts[i], i))
    return start, starts[start] / OFF_PEAK_HOURS / (sum(usd_per_hour) / 24)


def _cheapest_elsewhere(instance: str, market: Market, region: str, prices: PriceBook) -> Price | None:
    regions = [each for each in prices.regions(instance, market) if each != region]
    elsewhere = [price for each in regions if (price := prices.price(instance, market, each)) is not None]
    return min(elsewhere, key=lambda price: price.usd_per_hour, default=None)


def _priced(price: Price, usd_per_hour: float, now: float, name: str, assumes: str) -> Purchase:
    dated = f"{assumes}; price of {price.date}, {price.source}"
    return Purchase(name, usd_per_hour / now, price.market == "spot", dated)


def _unpriced(name: str, instance: str, market: Market, region: str) -> Purchase:
    return Purchase(name, why=f"no {market_name(market)} price of {instance} in {region} is known")


def _breaks_even(usd_per_hour: float, now: float) -> str:
    if usd_per_hour >= now:
        return "no interruptions"
    return f"no interruptions; it stays cheaper until they take {1 - usd_per_hour / now:.0%} of the time"


def market_name(market: str) -> str:
    """As levers name it."""
    names = {"reserved": "reserved for a year", "reserved_3y": "reserved for 3 years"}
    return names.get(market, market.replace("_", " "))


def _marked(name: str, configured: str, *notes: str) -> str:
    marks = [*(["as configured"] if name == configured else []), *notes]
    return f"{name} ({'; '.join(marks)})" if marks else name


def _speeds(costed: str, group: GroupFigures, groups: Sequence[GroupFigures], now: Now) -> Iterator[Lever]:
    """Precision and accumulation, as they were measured on the same machines. costed: key of the case that is."""
    cases = {
        key_of(other.suite, other.name, case.name): case
        for other in groups
        if other.suite == THROUGHPUT and _of_alike(other) == _of_alike(group)
        for case in other.cases
        if case.baseline == OURS
    }
    by_name = {case.name: case for case in reversed(cases.values())}
    narrow, wide = by_name.get("bf16"), by_name.get("fp32")
    smaller = next((case for case in cases.values() if case.name.startswith("micro batch ")), None)
    mine = cases.get(costed)
    if mine is not None and mine.speedup is not None:
        yield _in_use(mine.name, OURS, mine.speedup)
    if mine is None or mine not in (narrow, wide):
        slower = _cost(wide) if narrow is None else None
        if slower is not None:
            yield _in_use("bf16", "fp32", slower)
        else:
            yield _measured(PRECISION, narrow, "the loss stays as good over a whole training", now)
    if mine is None or mine is not smaller:
        name = ACCUMULATION if smaller is None else f"{ACCUMULATION}: {smaller.name}"
        assumes = "the same global batch in more passes; what the freed memory is worth is not in it"
        yield _measured(name, smaller, assumes, now)


def _of_alike(group: GroupFigures) -> tuple[object, ...]:
    """Equal for groups of one model on the same machines."""
    return group.model, group.hardware.device, group.hardware.instance_type, group.hardware.nodes


def _cost(case: CaseFigures | None) -> Interval | None:
    """Ratio of what tokens cost with it; None where its speedup is not known to be more than 0."""
    speedup = case.speedup if case is not None else None
    return speedup.inverse() if speedup is not None and speedup.low > 0 else None


def _in_use(name: str, without: str, saved: Interval) -> Lever:
    """saved: what tokens would cost without it, over what they cost."""
    cost = f"{saved.estimate:.2f}× ({saved.low:.2f} to {saved.high:.2f})"
    return Lever(name=name, assumes="", why=f"in use: with {without} instead tokens would cost {cost}")


def _measured(name: str, case: CaseFigures | None, assumes: str, now: Now) -> Lever:
    if case is None:
        why = "not measured: the throughput suite has no such case on these machines"
        return Lever(name=name, assumes="", why=why)
    cost = _cost(case)
    if cost is None or case.losses == "differ":
        return Lever(name=name, assumes="", why=case.not_compared or "its losses differ")
    return now.lever(name, f"{assumes}; measured beside {OURS}, n = {cost.n}", 1.0, cost)


def _together(bought: Sequence[Purchase], speeds: Sequence[Lever], now: Now) -> Iterator[Lever]:
    """The cheapest way to buy with all that was measured to save: with machines that are never taken away, and with
    those that may be."""
    saving = [(each.name, each.ratio) for each in speeds if each.ratio is not None and each.ratio.high < 1]
    for interrupted in (False, True):
        cheaper = [(each.ratio, each) for each in bought if each.ratio is not None and each.ratio < 1]
        ratio, best = min(
            (pair for pair in cheaper if pair[1].interrupted == interrupted),
            key=lambda pair: pair[0],
            default=(1.0, None),
        )
        if interrupted and best is None:
            continue
        names = [*([best.name] if best else []), *(name for name, _ in saving)]
        what = "together, on machines that may be taken away" if interrupted else "together, without interruptions"
        assumes = "what each assumes, and that their effects multiply" if len(names) > 1 else "what it assumes alone"
        yield now.lever(
            f"{what}: {' + '.join(names) or 'nothing known is cheaper'}",
            assumes if names else "",
            ratio,
            product(*(each for _, each in saving)),
            best.days if best else 1.0,
        )
