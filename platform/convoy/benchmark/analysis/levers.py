"""What would make the same tokens cheaper, each thing alone and what goes together. Pure.

A machine is bought in one way and in one place, so those are alternatives, of which the cheapest counts; what changes
the speed multiplies with it. Intervals of ratios multiply bound by bound, which is wide enough for what was measured
apart: bounds of independent factors are not all reached at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from convoy.benchmark.analysis.model import CaseFigures, CostFigures, GroupFigures, Lever
from convoy.benchmark.analysis.purchases import Known, bought, in_words
from convoy.catalog.prices import Market, PriceBook
from convoy.stats.interval import Interval

THROUGHPUT, OURS = "throughput", "ours"
"""Suite and case by which precision and accumulation are judged."""

TOKENS = 1e12

PRECISION, ACCUMULATION = "bf16 rather than fp32", "accumulation"

BASE: Market = "on_demand"
"""What the others are beside, where it has a price."""


class Now(NamedTuple):
    """What tokens cost by the first lever: on demand in the machines' region, where that has a price."""

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
    cost: CostFigures, group: GroupFigures, others: Sequence[GroupFigures], prices: PriceBook
) -> tuple[Lever, ...]:
    """None where the machines have no price. The first is what all others are beside. group: of the case that is
    costed. others: all groups."""
    name, region = group.hardware.instance_type, group.region
    if not cost.offers or name is None or region is None:
        return ()
    base = next((offer for offer in cost.offers if offer.market == BASE), cost.offers[0])
    now = Now(base.usd_per_million_tokens, cost.tokens_per_second.estimate)
    first = f"{in_words(base.market)} in {region}"
    ways = list(bought(name, region, base.usd_per_hour / group.hardware.nodes, replace(prices, own=group.prices)))
    known = [each for each in ways if isinstance(each, Known)]
    unknown = [each for each in ways if isinstance(each, Lever)]
    speeds = list(_speeds(cost.case, group, others, now))
    configured = "" if cost.market is None else f"{in_words(cost.market)} in {region}"
    return (
        now.lever(_marked(first, configured, "what the rows below are compared with"), "", 1.0),
        *(now.lever(_marked(each.name, configured), each.assumes, each.ratio, days=each.days) for each in known),
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


def _marked(name: str, configured: str, *notes: str) -> str:
    told = [*(["as configured"] if name == configured else []), *notes]
    return f"{name} ({'; '.join(told)})" if told else name


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
