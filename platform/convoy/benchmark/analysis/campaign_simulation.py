"""Many simulated campaigns of one kind, and what they have in common. Pure, and seeded."""

import math
import statistics
from collections.abc import Sequence

from convoy.benchmark.analysis.campaign_machines import PriceRatio
from convoy.report.train_report import Fact
from convoy.stats.interruptions import expected_overhead
from convoy.stats.interval import Interval, proportion
from convoy.stats.simulation import Assumed, simulate


class Range(Fact):
    """Over all campaigns: the median, and between what 90 of 100 lie."""

    median: float
    low: float
    high: float


class CampaignCourse(Fact):
    """All campaigns of one kind. Simulated."""

    announced_share: float
    """Of interruptions."""
    interval_seconds: float
    """Of work between two saves: Daly's best."""
    interruptions: Range
    """Of the gang, in one campaign."""
    mtbf_seconds: float | None
    """That came of it, over all campaigns; None: there was no interruption."""
    recovered: Interval | None
    """Of all interruptions that were simulated: the gang came further than it was before the next one. Wilson's
    interval, which tells how many there were."""
    overhead: Range
    """All other time over the productive time, in one campaign."""
    stalled: float
    """Share of all time, over all campaigns, as the next two."""
    recomputed: float
    restarting: float
    mean_overhead: float
    """Over all campaigns together."""
    expected_overhead: float | None
    """By Daly's formula, which knows of no notices; None: for such."""
    savings: Range | None
    """Of the price of the same work on-demand, without an interruption; None: a price is not known."""
    savings_by_zone: tuple[float, float] | None = None
    """The same at the spot price of the dearest zone and high overhead, and of the cheapest and low overhead."""


def course(assumed: Assumed, campaigns: int, seed: int, ratio: PriceRatio | None) -> CampaignCourse:
    """Of so many campaigns, the first with that seed. ratio: of prices; None: one is not known."""
    found = [simulate(assumed, seed + number) for number in range(campaigns)]
    total, productive = sum(c.seconds for c in found), sum(c.productive for c in found)
    n, known = sum(c.interruptions for c in found), sum(c.interruptions - c.cut_off for c in found)
    overhead = _range([c.overhead for c in found])
    return CampaignCourse(
        announced_share=assumed.announced_share,
        interval_seconds=assumed.interval,
        interruptions=_range([float(c.interruptions) for c in found]),
        mtbf_seconds=total / n if n else None,
        recovered=proportion(sum(c.recovered for c in found), known) if known else None,
        overhead=overhead,
        stalled=sum(c.stalled for c in found) / total,
        recomputed=sum(c.recomputed for c in found) / total,
        restarting=sum(c.restarting for c in found) / total,
        mean_overhead=total / productive - 1 if productive else math.inf,
        expected_overhead=None if assumed.announced_share else _expected(assumed),
        savings=_range([_saving(ratio.median, c.overhead) for c in found]) if ratio is not None else None,
        savings_by_zone=_by_zone(ratio, overhead) if ratio is not None else None,
    )


def _saving(price_ratio: float, overhead: float) -> float:
    return 1 - price_ratio * (1 + overhead)


def _by_zone(ratio: PriceRatio, overhead: Range) -> tuple[float, float]:
    return _saving(ratio.high, overhead.high), _saving(ratio.low, overhead.low)


def _expected(assumed: Assumed) -> float:
    """Daly's, whose saves are of use when they end: that they are durable later loses an interval more where a failure
    comes in between, a share of lag / cycle of all."""
    lag = max(0.0, assumed.durable_seconds - assumed.stall_seconds)
    daly = expected_overhead(assumed.interval, assumed.stall_seconds, assumed.restart_seconds, assumed.mtbf_seconds)
    return daly + lag / assumed.mtbf_seconds


def _range(values: Sequence[float]) -> Range:
    ordered = sorted(values)
    last = len(ordered) - 1
    return Range(median=statistics.median(ordered), low=ordered[round(0.05 * last)], high=ordered[round(0.95 * last)])
