"""A training on spot machines, simulated with the stalls and recoveries that were measured. Pure, and seeded: the same
cases give the same campaigns."""

import math
import statistics
from collections.abc import Sequence

from pydantic import ValidationError

from convoy.catalog.interruptions import interruptions, mtbf_seconds
from convoy.catalog.observed import PriceList, newest_price
from convoy.config.bench_recovery import CampaignConfig
from convoy.report.bench_checkpoints import CheckpointFigures
from convoy.report.bench_recovery import SUITE, DrillFigures
from convoy.report.train_report import Fact
from convoy.results.case import Case
from convoy.results.samples import Sample
from convoy.stats.campaign import Assumed, simulate
from convoy.stats.interval import Interval
from convoy.stats.proportion import proportion
from convoy.stats.young_daly import expected_overhead

CAMPAIGNS = 1000
"""That are simulated."""

DAY = 86400.0

UNANNOUNCED, ANNOUNCED = "node-kill", "spot-notice"
"""Drills of a machine that is lost, and of one that has notice."""


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
    """Of all interruptions: the gang came further than it was before the next one; Wilson's interval."""
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


class CampaignFigures(Fact):
    """What was assumed, where it comes from, and what came of it."""

    setting: CampaignConfig
    campaigns: int = CAMPAIGNS
    taken_per_month: float | None = None
    """Share of machines."""
    taken_source: str = ""
    mtbf_seconds: float | None = None
    """Of the gang, as assumed."""
    stall_seconds: float | None = None
    durable_seconds: float | None = None
    restart_seconds: float | None = None
    """After an interruption without notice, with the replacement."""
    announced_seconds: float | None = None
    """From the notice until work goes on, with the replacement; None: no drill has told, and all come unannounced."""
    saved_seconds: float | None = None
    """From the notice until all is saved."""
    measured: dict[str, str] = {}
    """Where those of the five above come from that were measured."""
    prices: tuple[str, ...] = ()
    courses: tuple[CampaignCourse, ...] = ()
    why: str = ""
    """Why nothing is simulated."""


def campaign(
    cases: Sequence[Case],
    checkpoints: Sequence[CheckpointFigures],
    drills: Sequence[DrillFigures],
    prices: PriceList | None,
) -> CampaignFigures | None:
    """None where no recovery suite was run."""
    setting = _setting(cases)
    if setting is None:
        return None
    share, source = _taken(setting)
    saving = max((c for c in checkpoints if c.stall and c.save), key=lambda c: c.state_bytes, default=None)
    lost = next((d.recovered for d in drills if d.drill == UNANNOUNCED), None)
    why = ""
    if share is None:
        why = f"how often {setting.instance_type} is taken away is not known (recovery.campaign.taken_per_month)"
    elif saving is None or saving.stall is None or saving.stall.median <= 0:
        why = "no stall of a save was measured (suite checkpoint)"
    elif lost is None:
        why = f"no recovery from {UNANNOUNCED} was measured (recovery.drills)"
    if why or share is None or saving is None or lost is None:
        return CampaignFigures(setting=setting, taken_per_month=share, taken_source=source, why=why)
    told = CampaignFigures(
        setting=setting,
        taken_per_month=share,
        taken_source=source,
        mtbf_seconds=mtbf_seconds(share, setting.nodes),
        **_measured(setting, saving, lost, next((d for d in drills if d.drill == ANNOUNCED), None)),
    )
    ratio, sources = _price_ratio(setting, prices)
    return told.model_copy(
        update={"prices": sources, "courses": tuple(_course(told, each, ratio) for each in _shares(told))}
    )


def _setting(cases: Sequence[Case]) -> CampaignConfig | None:
    """Of the first case of the suite that has it as this version understands it."""
    for case in cases:
        if case.suite == SUITE and isinstance(found := case.config.get("campaign"), dict):
            try:
                return CampaignConfig.model_validate(found)
            except ValidationError:
                continue
    return None


def _taken(setting: CampaignConfig) -> tuple[float | None, str]:
    if setting.taken_per_month is not None:
        return setting.taken_per_month, "recovery.campaign.taken_per_month"
    found = interruptions(setting.instance_type)
    if found is None:
        return None, ""
    band = f"{100 * found.low:g} to {100 * found.high:g} %"
    return found.high, f"upper end of {band} a month, {found.date}, {found.source}"


def _measured(
    setting: CampaignConfig, saving: CheckpointFigures, lost: Sample, announced: DrillFigures | None
) -> dict[str, object]:
    """What campaigns take from measurements."""
    assert saving.stall is not None
    assert saving.save is not None
    found: dict[str, object] = {
        "stall_seconds": saving.stall.median,
        "durable_seconds": saving.durable.median if saving.durable else saving.save.median,
        "restart_seconds": lost.median + setting.replacement_seconds,
    }
    told = {
        "stall_seconds": f"{saving.case}, {saving.model}, n = {saving.stall.n}",
        "durable_seconds": f"{saving.case}, {saving.model}, n = {(saving.durable or saving.save).n}",
        "restart_seconds": f"drill {UNANNOUNCED}, n = {lost.n}",
    }
    if announced is not None and announced.recovered is not None and announced.detected is not None:
        found["announced_seconds"] = announced.recovered.median + setting.replacement_seconds
        found["saved_seconds"] = announced.detected.median + saving.save.median
        told["announced_seconds"] = f"drill {ANNOUNCED}, n = {announced.recovered.n}"
        told["saved_seconds"] = f"detected in drill {ANNOUNCED}, n = {announced.detected.n}; save of {saving.model}"
    return {**found, "measured": told}


def _shares(told: CampaignFigures) -> list[float]:
    """Of interruptions that lose nothing: as configured, where the notice is long enough; and none of them."""
    in_time = told.saved_seconds is not None and told.saved_seconds <= told.setting.notice_seconds
    return list(dict.fromkeys([told.setting.announced_share if in_time else 0.0, 0.0]))


def _course(told: CampaignFigures, share: float, price_ratio: float | None) -> CampaignCourse:
    assert told.mtbf_seconds is not None
    assert told.stall_seconds is not None
    assert told.restart_seconds is not None
    assumed = Assumed(
        seconds=told.setting.days * DAY,
        mtbf_seconds=told.mtbf_seconds,
        stall_seconds=told.stall_seconds,
        durable_seconds=told.durable_seconds or 0.0,
        restart_seconds=told.restart_seconds,
        announced_share=share,
        announced_seconds=told.announced_seconds or 0.0,
    )
    found = [simulate(assumed, told.setting.seed + number) for number in range(CAMPAIGNS)]
    total, productive = sum(c.seconds for c in found), sum(c.productive for c in found)
    n, known = sum(c.interruptions for c in found), sum(c.interruptions - c.cut_off for c in found)
    savings = [1 - price_ratio * (1 + c.overhead) for c in found] if price_ratio is not None else None
    return CampaignCourse(
        announced_share=share,
        interval_seconds=assumed.interval,
        interruptions=_range([float(c.interruptions) for c in found]),
        mtbf_seconds=total / n if n else None,
        recovered=proportion(sum(c.recovered for c in found), known) if known else None,
        overhead=_range([c.overhead for c in found]),
        stalled=sum(c.stalled for c in found) / total,
        recomputed=sum(c.recomputed for c in found) / total,
        restarting=sum(c.restarting for c in found) / total,
        mean_overhead=total / productive - 1 if productive else math.inf,
        expected_overhead=None if share else _expected(assumed),
        savings=_range(savings) if savings is not None else None,
    )


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


def _price_ratio(setting: CampaignConfig, prices: PriceList | None) -> tuple[float | None, tuple[str, ...]]:
    """Spot over on-demand, and where both come from."""
    spot = newest_price(prices, setting.instance_type, "spot", setting.region)
    dear = newest_price(prices, setting.instance_type, "on_demand", setting.region)
    if spot is None or dear is None:
        return None, ()
    told = tuple(
        f"{name} {found.usd_per_hour:,.2f} USD an hour, {found.date}, {found.source}"
        for name, found in (("spot", spot), ("on-demand", dear))
    )
    return spot.usd_per_hour / dear.usd_per_hour, told
