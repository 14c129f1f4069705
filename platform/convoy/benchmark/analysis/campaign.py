"""What a training on spot machines is expected to take, by the planner's model and with what was measured. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field, ValidationError

from convoy.benchmark.analysis import checkpoints
from convoy.benchmark.analysis.checkpoints import CheckpointFigures
from convoy.benchmark.analysis.recovery import SUITE, DrillFigures
from convoy.benchmark.results.case import Case, Fact
from convoy.catalog.instances import instance_names, interruptions
from convoy.catalog.prices import PriceBook
from convoy.config.benchmark import CampaignConfig
from convoy.planner.cost.failures import Drain, Failures, Rate, Restart, Saving, best_save_interval, never_taken
from convoy.planner.cost.spot import Campaign, expected_campaign
from convoy.stats.interruptions import poisson_quantile
from convoy.stats.interval import Interval, exact

HOUR, DAY = 3600.0, 86400.0

UNANNOUNCED, ANNOUNCED = "node-kill", "spot-notice"
"""Drills of a machine that is lost, and of one that has notice."""

EXAMPLE, EXAMPLE_NODES, EXAMPLE_REGION = "p4d.24xlarge", 4, "us-east-1"
"""The machines of a campaign where neither the configuration nor the results name any."""


class Setting(CampaignConfig):
    """The configuration with its machines filled in."""

    instance_type: str
    region: str
    nodes: int = Field(ge=1)


class Range(Fact):
    """What a campaign comes to with as many interruptions as half of all campaigns have at most; low and high: with as
    many as 5 and 95 of 100 have at most."""

    median: float
    low: float
    high: float


class CampaignCourse(Fact):
    """A campaign as it is expected, and how far luck takes it from that."""

    announced_share: float
    """Share of interruptions before which there is time to save."""
    interval_seconds: float
    """Work between two saves: the planner's best for the band, which nobody changes on a bad day."""
    interruptions: Range
    mtbf_seconds: float
    recovered: Interval
    """Share of interruptions after which work resumes before the next one; computed, so without a spread."""
    overhead: Range
    """All other time over the productive time."""
    stalled: float
    """Expected share of all time, as the next two."""
    recomputed: float
    restarting: float
    """Last saves after a notice, waiting for another machine, and restarts."""
    mean_overhead: float
    savings: Range | None
    """Share of the price of the same work on demand, without an interruption: from the dearest zone and high overhead
    to the cheapest zone and low overhead; None: a price is not known."""


class CampaignFigures(Fact):
    """A campaign's assumptions, their sources, and its results."""

    setting: Setting
    example: bool = True
    """Saves were measured on other machines, or on another number of them."""
    taken_per_month: float | None = None
    """Share of machines."""
    taken_source: str = ""
    mtbf_seconds: float | None = None
    """Mean time until the gang is interrupted: a machine is taken away, or breaks."""
    stall_seconds: float | None = None
    durable_seconds: float | None = None
    restart_seconds: float | None = None
    """After an interruption without notice, with the replacement."""
    announced_seconds: float | None = None
    """From the notice until work resumes, with the replacement; None: no drill had a notice; none is used."""
    saved_seconds: float | None = None
    """From the notice until all is saved."""
    measured: dict[str, str] = {}
    """Sources of those of the five above that were measured."""
    saved_model: str = ""
    saved_state_bytes: float | None = None
    saved_on: str = ""
    """Machines on which saves of that model were measured."""
    drilled_nodes: int | None = None
    """Nodes of the gang that was interrupted, which are processes of one host."""
    prices: tuple[str, ...] = ()
    courses: tuple[CampaignCourse, ...] = ()
    bad_day: tuple[CampaignCourse, ...] = ()
    """The same where machines are taken away as often as on a bad day, all the time; empty: the setting has none."""
    why: str = ""
    """Why nothing is computed."""


@dataclass(frozen=True)
class _Inputs:
    """Arguments of the planner's model, and prices."""

    setting: Setting
    failures: Failures
    saving: Saving
    restart: Restart
    price_ratio: Range | None
    """Spot over on-demand: median over zones, the cheapest zone and the dearest; None: a price is not known."""

    def courses(self, rate: Callable[[Failures], Rate]) -> tuple[CampaignCourse, ...]:
        """With the notices of the setting, where there is time to use them, and without any. rate: how often the gang
        is interrupted."""
        ways = [self.failures] if self.failures.often.notice_used else []
        return tuple(self._course(each, rate(each)) for each in (*ways, replace(self.failures, announced=0.0)))

    def _course(self, failures: Failures, rate: Rate) -> CampaignCourse:
        seconds, interval = self.setting.days * DAY, best_save_interval(failures, self.saving)
        expected = expected_campaign(seconds, rate, interval, failures, self.saving, self.restart)
        # Interruptions come also while the gang is down.
        low, median, high = (float(poisson_quantile(share, seconds / rate.mtbf_seconds)) for share in (0.05, 0.5, 0.95))
        interruptions = Range(median=median, low=low, high=high)
        overhead = Range(**{name: _overhead(expected, seconds, n) for name, n in interruptions})
        return CampaignCourse(
            announced_share=rate.notice_used,
            interval_seconds=interval,
            interruptions=interruptions,
            mtbf_seconds=rate.mtbf_seconds,
            recovered=exact(expected.resumed),
            overhead=overhead,
            stalled=expected.stalled / expected.seconds,
            recomputed=expected.recomputed / expected.seconds,
            restarting=expected.down_seconds / expected.seconds,
            mean_overhead=expected.overhead,
            savings=self._savings(overhead),
        )

    def _savings(self, overhead: Range) -> Range | None:
        """The dearer the machines and the higher the overhead, the lower they are."""
        if (ratio := self.price_ratio) is None:
            return None
        return Range(
            median=1 - ratio.median * (1 + overhead.median),
            low=1 - ratio.high * (1 + overhead.high),
            high=1 - ratio.low * (1 + overhead.low),
        )


def campaign(
    cases: Sequence[Case],
    checkpoints: Sequence[CheckpointFigures],
    drills: Sequence[DrillFigures],
    prices: PriceBook,
) -> CampaignFigures | None:
    """None where no recovery suite was run."""
    config = _config(cases)
    if config is None:
        return None
    saving = max((c for c in checkpoints if c.stall and c.save), key=lambda c: c.state_bytes, default=None)
    saved = _case_of(saving, cases)
    setting = _setting(config, saved)
    share, source = _taken(setting)
    lost = next((d for d in drills if d.drill == UNANNOUNCED and d.recovered is not None), None)
    facts: dict[str, Any] = {"setting": setting, "taken_per_month": share, "taken_source": source}
    if share is None:
        why = f"how often {setting.instance_type} is taken away is not known (recovery.campaign.taken_per_month)"
        return CampaignFigures(**facts, why=why)
    if not (saved and saving and saving.stall and saving.save and saving.stall.median > 0):
        return CampaignFigures(**facts, why="no stall of a save was measured (suite checkpoint)")
    if lost is None or lost.recovered is None:
        return CampaignFigures(**facts, why=f"no recovery from {UNANNOUNCED} was measured (recovery.drills)")
    durable = saving.durable or saving.save
    noticed = next((d.detected for d in drills if d.drill == ANNOUNCED and d.detected is not None), None)
    # The last save after a notice is written with nothing else going on.
    drain = Drain(noticed.median, saving.save.median) if noticed else None
    ratio, sources = _price_ratio(setting, saved, prices)
    inputs = _Inputs(
        setting,
        _failures(setting, share, drain),
        Saving(saving.stall.median, durable.median),
        Restart(lost.recovered.median, setting.replacement_seconds),
        ratio,
    )
    hours = setting.bad_day_hours
    try:
        courses = inputs.courses(lambda failures: failures.often)
        bad_day = () if hours is None else inputs.courses(lambda failures: failures.every(hours * HOUR))
    except ValueError as error:  # it would hardly ever end
        return CampaignFigures(**facts, why=str(error))
    saves, drill = f"{saving.case}, {saving.model}", f"drill {UNANNOUNCED}, n = {lost.recovered.n}"
    measured = {
        "stall_seconds": f"{saves}, n = {saving.stall.n}",
        "durable_seconds": f"{saves}, n = {durable.n}",
        "restart_seconds": drill,
    }
    restart = lost.recovered.median + setting.replacement_seconds
    last = None if drain is None else drain.before_seconds + drain.write_seconds
    if noticed is not None:
        notice = f"detected in drill {ANNOUNCED}, n = {noticed.n}; save of {saving.model}"
        measured |= {"announced_seconds": f"{notice}; {drill}", "saved_seconds": notice}
    return CampaignFigures(
        **facts,
        stall_seconds=saving.stall.median,
        durable_seconds=durable.median,
        restart_seconds=restart,
        announced_seconds=None if last is None else last + restart,
        saved_seconds=last,
        measured=measured,
        example=(saved.hardware.instance_type, saved.hardware.nodes) != (setting.instance_type, setting.nodes),
        mtbf_seconds=inputs.failures.often.mtbf_seconds,
        saved_model=saving.model,
        saved_state_bytes=saving.state_bytes,
        saved_on=saved.hardware.machines,
        drilled_nodes=lost.nodes,
        prices=sources,
        courses=courses,
        bad_day=bad_day,
    )


def _config(cases: Sequence[Case]) -> CampaignConfig | None:
    """The setting of the first case of the recovery suite that this version can read."""
    for case in cases:
        if case.suite == SUITE and isinstance(config := case.config.get("campaign"), dict):
            try:
                return CampaignConfig.model_validate(config)
            except ValidationError:
                continue
    return None


def _case_of(saving: CheckpointFigures | None, cases: Sequence[Case]) -> Case | None:
    """The one that the figures are of."""
    of = (checkpoints.SUITE, saving.group, saving.case) if saving is not None else None
    return next((case for case in cases if (case.suite, case.group, case.name) == of), None)


def _setting(config: CampaignConfig, saved: Case | None) -> Setting:
    """What is left open is as in the case whose saves were measured, or as in the example."""
    machine = saved.hardware.instance_type if saved is not None else None
    name = config.instance_type or machine or EXAMPLE
    nodes = saved.hardware.nodes if saved is not None and name == machine else EXAMPLE_NODES
    filled = {
        "instance_type": name,
        "region": config.region or (saved and saved.cluster("region")) or EXAMPLE_REGION,
        "nodes": config.nodes or nodes,
    }
    return Setting.model_validate(config.model_dump() | filled)


def _taken(setting: Setting) -> tuple[float | None, str]:
    """Share of machines that are taken away within a month, and where that is from."""
    if setting.taken_per_month is not None:
        return setting.taken_per_month, "recovery.campaign.taken_per_month"
    band = interruptions(setting.instance_type)
    if band is None:
        return None, ""
    share = f"{100 * band.low:g} to {100 * band.high:g} %"
    return band.high, f"upper end of {share} a month, {band.date}, {band.source}"


def _failures(setting: Setting, share: float, drain: Drain | None) -> Failures:
    """Machines that nobody takes away break as in a plan; of a type that the catalog does not have, that is unknown."""
    name, nodes = setting.instance_type, setting.nodes
    return Failures(
        nodes,
        low=share,
        high=share,
        faults_seconds=never_taken(name, nodes).faults_seconds if name in instance_names() else math.inf,
        notice_seconds=setting.notice_seconds,
        announced=setting.announced_share,
        drain=drain,
    )


def _price_ratio(setting: Setting, saved: Case, prices: PriceBook) -> tuple[Range | None, tuple[str, ...]]:
    """None where either price is not known; and where both come from. saved: whose saves were measured; a price of its
    own counts, where it is of these machines."""
    book = replace(prices, own=saved.own_prices)
    spot = book.price(setting.instance_type, "spot", setting.region)
    dear = book.price(setting.instance_type, "on_demand", setting.region)
    if spot is None or dear is None:
        return None, ()
    zones = ""
    if spot.low_usd_per_hour < spot.high_usd_per_hour:
        zones = f"{spot.low_usd_per_hour:,.2f} to {spot.high_usd_per_hour:,.2f} by zone, "
    sources = (
        f"spot {spot.usd_per_hour:,.2f} USD an hour, {zones}{spot.date}, {spot.source}",
        f"on-demand {dear.usd_per_hour:,.2f} USD an hour, {dear.date}, {dear.source}",
    )
    usd = dear.usd_per_hour
    return Range(
        median=spot.usd_per_hour / usd, low=spot.low_usd_per_hour / usd, high=spot.high_usd_per_hour / usd
    ), sources


def _overhead(expected: Campaign, seconds: float, interruptions: float) -> float:
    """Of a campaign with so many interruptions, each of which costs what one is expected to cost; infinite: nothing was
    done."""
    lost, down = (each / expected.interruptions for each in (expected.recomputed, expected.down_seconds))
    working = (expected.productive + expected.recomputed) / (expected.seconds - expected.down_seconds)
    productive = (seconds - interruptions * down) * working - interruptions * lost
    return seconds / productive - 1 if productive > 0 else math.inf
