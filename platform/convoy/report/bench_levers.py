"""What would make the same tokens cheaper, each thing alone and what goes together. Pure.

A machine is bought in one way and in one place, so those are alternatives, of which the cheapest counts; what changes
the speed multiplies with it. Intervals of ratios multiply bound by bound, which is wide enough for what was measured
apart: bounds of independent factors are not all reached at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from convoy.catalog.observed import PriceList, SpotHours, newest_price, regions_of
from convoy.catalog.prices import Market, Price
from convoy.report.bench_report import CaseFigures, CostFigures, GroupFigures, Lever
from convoy.stats.interval import Interval

THROUGHPUT, OURS = "throughput", "ours"
"""Suite and case by which precision and accumulation are judged."""

TOKENS = 1e12

OFF_PEAK_HOURS = 8
"""In a row, in which machines run each day."""

PRECISION, ACCUMULATION = "bf16 rather than fp32", "accumulation"

_MOVABLE: tuple[Market, ...] = ("on_demand", "spot")

COMMITTED: dict[Market, str] = {
    "reserved": "paid for a year, around the clock",
    "reserved_3y": "paid for three years, around the clock",
    "capacity_block": "paid ahead for whole days, which are to be had; ends when the block ends",
}


class Known(NamedTuple):
    """A way to buy the machines, beside how they are bought now."""

    name: str
    ratio: float
    """Of the price for a machine and hour."""
    interrupted: bool
    assumes: str
    days: float = 1.0
    """It takes so many times as many days."""


class Now(NamedTuple):
    """What tokens cost as the machines are bought now."""

    usd_per_million_tokens: Interval
    tokens_per_second: float

    def lever(self, name: str, assumes: str, price: float, speed: Interval | None = None, days: float = 1.0) -> Lever:
        """price: ratio of prices. speed: what tokens cost by what changes the speed, None: nothing does. days: as of
        `Known`."""
        slower = times() if speed is None else speed
        ratio = times(exact(price), slower)
        return Lever(
            name=name,
            ratio=ratio,
            usd_per_million_tokens=times(self.usd_per_million_tokens, ratio),
            seconds_per_trillion_tokens=TOKENS / self.tokens_per_second * slower.estimate * days,
            assumes=assumes,
        )


def levers(
    cost: CostFigures, group: GroupFigures, others: Sequence[GroupFigures], prices: PriceList | None
) -> tuple[Lever, ...]:
    """None where the machines have no price now. group: of the case that is costed. others: all groups."""
    name, region = group.hardware.instance_type, group.region
    if not cost.offers or name is None or region is None:
        return ()
    base = next((offer for offer in cost.offers if offer.market == "on_demand"), cost.offers[0])
    now = Now(base.usd_per_million_tokens, cost.tokens_per_second.estimate)
    told = list(bought(name, region, base.usd_per_hour / group.hardware.nodes, prices))
    known = [each for each in told if isinstance(each, Known)]
    unknown = [each for each in told if isinstance(each, Lever)]
    speeds = list(_speeds(cost.case, group, others, now))
    return (
        now.lever(f"{base.market.replace('_', ' ')} in {region}, as now", "", 1.0),
        *(now.lever(each.name, each.assumes, each.ratio, days=each.days) for each in known),
        *unknown,
        *speeds,
        *_together(known, speeds, now),
    )


def times(*ratios: Interval) -> Interval:
    """Their product; of none, exactly 1."""
    found = exact(1.0)
    for each in ratios:
        n = max(found.n, each.n) if 1 in (found.n, each.n) else min(found.n, each.n)
        found = Interval(
            estimate=found.estimate * each.estimate, low=found.low * each.low, high=found.high * each.high, n=n
        )
    return found


def exact(value: float) -> Interval:
    """Of what is no measurement, such as a price."""
    return Interval(estimate=value, low=value, high=value, n=1)


def inverse(ratio: Interval) -> Interval | None:
    """Of a speedup what tokens cost; None where it is not known to be more than 0."""
    if ratio.low <= 0:
        return None
    return Interval(estimate=1 / ratio.estimate, low=1 / ratio.high, high=1 / ratio.low, n=ratio.n)


def bought(instance: str, region: str, now: float, prices: PriceList | None) -> Iterator[Known | Lever]:
    """Each other way and place to buy, or why it has no price. now: USD for a machine and hour."""
    yield from _spot(instance, region, now, prices)
    for market in _MOVABLE:
        elsewhere = _cheapest_elsewhere(instance, market, region, prices)
        words = f"{_words(market)} in another region"
        if elsewhere is None:
            yield _unknown(words, instance, market, "any other region")
            continue
        assumes = "data and checkpoints are kept there; moving them is not in it"
        if market == "spot":
            assumes = f"{assumes}; {_breaks_even(elsewhere.usd_per_hour, now)}"
        yield _known(elsewhere, elsewhere.usd_per_hour, now, f"{words}: {elsewhere.region}", assumes)
    for market, assumes in COMMITTED.items():
        price = newest_price(prices, instance, market, region)
        words = f"{_words(market)} in {region}"
        if price is None:
            yield _unknown(words, instance, market, region)
        else:
            least = f"pays if used for {price.usd_per_hour / now:.0%} of it or more"
            yield _known(price, price.usd_per_hour, now, words, f"{assumes}; {least}")


def _spot(instance: str, region: str, now: float, prices: PriceList | None) -> Iterator[Known | Lever]:
    """In the region where the machines are: around the clock, in one zone, and only when it is cheapest."""
    spot, hours = newest_price(prices, instance, "spot", region), _hours(instance, region, prices)
    if spot is None:
        yield _unknown(f"spot in {region}", instance, "spot", region)
        return
    usd, least = spot.usd_per_hour, spot.low_usd_per_hour
    yield _known(spot, usd, now, f"spot in {region}", _breaks_even(usd, now))
    if least < usd:
        assumes = f"all machines are to be had in one zone; {_breaks_even(least, now)}"
        yield _known(spot, least, now, f"spot in the cheapest zone of {region}", assumes)
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
    return Lever(name=name, assumes="", why=f"no {_words(market)} price of {instance} in {region} is known")


def _breaks_even(usd_per_hour: float, now: float) -> str:
    if usd_per_hour >= now:
        return "no interruptions"
    return f"no interruptions; it stays cheaper until they take {1 - usd_per_hour / now:.0%} of the time"


def _cheapest_elsewhere(instance: str, market: Market, region: str, prices: PriceList | None) -> Price | None:
    regions = [each for each in regions_of(prices, instance, market) if each != region]
    told = [price for each in regions if (price := newest_price(prices, instance, market, each)) is not None]
    return min(told, key=lambda price: price.usd_per_hour, default=None)


def _hours(instance: str, region: str, prices: PriceList | None) -> SpotHours | None:
    rows = prices.spot_hours if prices is not None else ()
    return next((row for row in rows if (row.instance, row.region) == (instance, region)), None)


def _words(market: Market) -> str:
    return {"reserved": "reserved for a year", "reserved_3y": "reserved for 3 years"}.get(
        market, market.replace("_", " ")
    )


def _speeds(costed: str, group: GroupFigures, others: Sequence[GroupFigures], now: Now) -> Iterator[Lever]:
    """Precision and accumulation, as they were measured on the same machines. costed: key of the case that is."""
    same = (group.model, group.hardware.device, group.hardware.instance_type, group.hardware.nodes)
    cases: dict[str, CaseFigures] = {}
    for other in others:
        hardware = other.hardware
        if other.suite == THROUGHPUT and (other.model, hardware.device, hardware.instance_type, hardware.nodes) == same:
            told = [case for case in other.cases if case.baseline == OURS]
            cases |= {f"{other.suite}-{other.name}-{case.name}": case for case in told}
    narrow, wide = _named(cases, "bf16"), _named(cases, "fp32")
    smaller = next((case for case in cases.values() if case.name.startswith("micro batch ")), None)
    mine = cases.get(costed)
    if mine is not None and mine.speedup is not None:
        yield _in_use(mine.name, OURS, mine.speedup)
    if mine is None or mine not in (narrow, wide):
        slower = inverse(wide.speedup) if narrow is None and wide is not None and wide.speedup is not None else None
        if slower is not None:
            yield _in_use("bf16", "fp32", slower)
        else:
            yield _measured(PRECISION, narrow, "the loss stays as good over a whole training", now)
    if mine is None or mine is not smaller:
        name = ACCUMULATION if smaller is None else f"{ACCUMULATION}: {smaller.name}"
        assumes = "the same global batch in more passes; what the freed memory is worth is not in it"
        yield _measured(name, smaller, assumes, now)


def _in_use(name: str, without: str, saved: Interval) -> Lever:
    """saved: what tokens would cost without it, over what they cost."""
    why = (
        f"in use: with {without} instead tokens would cost {saved.estimate:.2f}× ({saved.low:.2f} to {saved.high:.2f})"
    )
    return Lever(name=name, assumes="", why=why)


def _measured(name: str, case: CaseFigures | None, assumes: str, now: Now) -> Lever:
    if case is None:
        why = "not measured: the throughput suite has no such case on these machines"
        return Lever(name=name, assumes="", why=why)
    ratio = inverse(case.speedup) if case.speedup is not None else None
    if ratio is None or case.losses == "differ":
        return Lever(name=name, assumes="", why=case.not_compared or "its losses differ")
    return now.lever(name, f"{assumes}; measured beside {OURS}, n = {ratio.n}", 1.0, ratio)


def _named(cases: Mapping[str, CaseFigures], name: str) -> CaseFigures | None:
    return next((case for case in cases.values() if case.name == name), None)


def _together(known: Sequence[Known], speeds: Sequence[Lever], now: Now) -> Iterator[Lever]:
    """The cheapest way to buy with what is seen to save beside it: with machines that are never taken away, and with
    those that may be."""
    seen = [(each.name, each.ratio) for each in speeds if each.ratio is not None and each.ratio.high < 1]
    for interrupted in (False, True):
        ways = [each for each in known if each.interrupted == interrupted and each.ratio < 1]
        best = min(ways, key=lambda each: each.ratio, default=None)
        names = [*([best.name] if best else []), *(name for name, _ in seen)]
        if interrupted and best is None:
            continue
        what = "together, on machines that may be taken away" if interrupted else "together, without interruptions"
        assumes = "what each assumes, and that their effects multiply" if len(names) > 1 else "what it assumes alone"
        yield now.lever(
            f"{what}: {' + '.join(names) or 'nothing known is cheaper'}",
            assumes if names else "",
            best.ratio if best else 1.0,
            times(*(ratio for _, ratio in seen)),
            best.days if best else 1.0,
        )
