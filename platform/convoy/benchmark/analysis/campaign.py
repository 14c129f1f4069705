"""What a training on spot machines is expected to take, by the planner's model and with what was measured. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field, ValidationError

from convoy.benchmark.analysis import checkpoints
from convoy.benchmark.analysis.checkpoints import CheckpointFigures
from convoy.benchmark.analysis.recovery import SUITE, DrillFigures
from convoy.benchmark.results.case import Case, FrozenResult, Hardware
from convoy.catalog.instances import instance_names, interruption_band
from convoy.catalog.prices import Price, PriceBook
from convoy.config.benchmark import CampaignConfig
from convoy.display import formatting
from convoy.planner.cost.campaign import expected_campaign
from convoy.planner.cost.failures import (
    Drain,
    FailureModel,
    InterruptionRate,
    RestartCost,
    SaveCost,
    best_save_interval,
    hardware_failures,
)

HOUR, DAY = 3600.0, 86400.0

UNANNOUNCED, ANNOUNCED = "node-kill", "spot-notice"
"""Drills of a machine that is lost, and of one that has notice."""

EXAMPLE, EXAMPLE_NODES, EXAMPLE_REGION = "p4d.24xlarge", 4, "us-east-1"
"""The machines of a campaign where neither the configuration nor the results name any."""

_RATES = "the share reclaimed, for all machines, and faults of their GPUs, as a plan assumes them"


class CampaignSetting(CampaignConfig):
    """The configuration with its machines filled in."""

    instance_type: str
    region: str
    nodes: int = Field(ge=1)

    @property
    def machines(self) -> str:
        return f"{self.nodes} × {self.instance_type}"


class SpotSavings(FrozenResult):
    """Share of the price of the same work on demand, without an interruption."""

    median: float
    """At the median price over zones."""
    low: float
    """In the dearest zone."""
    high: float
    """In the cheapest zone."""


class CampaignCourse(FrozenResult):
    """A campaign as it is expected. Shares are of all of its time."""

    announced_share: float
    """Share of interruptions before which there is time to save."""
    interval_seconds: float
    """Work between two saves: the planner's best for the band, which nobody changes on a bad day."""
    interruptions: float
    mtbf_seconds: float
    recovered: float
    """Share of interruptions after which work resumes before the next one."""
    overhead: float
    """All other time over the productive time."""
    stalled: float
    recomputed: float
    restarting: float
    """Last saves after a notice, waiting for another machine, and restarts."""
    savings: SpotSavings | None
    """None: a price is not known."""


class CampaignInput(FrozenResult):
    """A duration that the campaign is computed from."""

    what: str
    seconds: float
    source: str


class CampaignFigures(FrozenResult):
    """A campaign's assumptions, their sources, and its results."""

    setting: CampaignSetting
    example: str = ""
    """Why it is no forecast: saves were measured on other machines, or on another number of them."""
    taken_per_month: float | None = None
    """Share of machines."""
    taken_source: str = ""
    inputs: tuple[CampaignInput, ...] = ()
    prices: tuple[str, ...] = ()
    course: CampaignCourse | None = None
    """None: `why` says why nothing is computed."""
    bad_day: CampaignCourse | None = None
    """The same where machines are reclaimed as often as on a bad day, all the time; None: the setting has none."""
    why: str = ""


def campaign_figures(
    cases: Sequence[Case], saves: Sequence[CheckpointFigures], drills: Sequence[DrillFigures], prices: PriceBook
) -> CampaignFigures | None:
    """None where no recovery suite was run."""
    config = _campaign_config(cases)
    if config is None:
        return None
    saving = max((c for c in saves if c.stall and c.save), key=lambda c: c.state_bytes, default=None)
    of = (checkpoints.SUITE, saving.group, saving.case) if saving is not None else None
    saved = next((case for case in cases if (case.suite, case.group, case.name) == of), None)
    setting = _filled_setting(config, saved)
    share, source = _reclaimed_share(setting)
    lost = next((d for d in drills if d.drill == UNANNOUNCED), None)
    facts: dict[str, Any] = {"setting": setting, "taken_per_month": share, "taken_source": source}
    if share is None:
        why = f"how often {setting.instance_type} is reclaimed is not known (recovery.campaign.taken_per_month)"
        return CampaignFigures(**facts, why=why)
    if not (saved and saving and saving.stall and saving.save and saving.stall.median > 0):
        return CampaignFigures(**facts, why="no stall of a save was measured (suite checkpoint)")
    if lost is None or lost.recovered is None:
        return CampaignFigures(**facts, why=f"no recovery from {UNANNOUNCED} was measured (recovery.drills)")
    durable = saving.durable or saving.save
    noticed = next((d.detected for d in drills if d.drill == ANNOUNCED and d.detected is not None), None)
    # The last save after a notice is written with nothing else going on.
    drain = Drain(noticed.median, saving.save.median) if noticed else None
    failures = _failure_model(setting, share, drain)
    own_prices = _spot_on_demand_prices(setting, saved, prices)
    restarting = RestartCost(lost.recovered.median, setting.replacement_seconds)
    costs = SaveCost(saving.stall.median, durable.median), restarting

    def course_at(rate: InterruptionRate) -> CampaignCourse:
        return _expected_course(rate, setting.days * DAY, failures, *costs, own_prices)

    hours = setting.bad_day_hours
    try:
        course = course_at(failures.highest_rate)
        bad_day = course_at(failures.rate_if_reclaimed_every(hours * HOUR)) if hours else None
    except ValueError as error:  # it would hardly ever end
        return CampaignFigures(**facts, why=str(error))
    save, drill = f"measured: {saving.case}, {saving.model}", f"drill {UNANNOUNCED}, n = {lost.recovered.n}"
    restart = lost.recovered.median + setting.replacement_seconds
    inputs: list[tuple[str, float | None, str]] = [
        ("Mean time between interruptions of the gang", failures.highest_rate.mtbf_seconds, _RATES),
        ("The same on a bad day", hours and hours * HOUR, "assumed: recovery.campaign.bad_day_hours"),
        ("Stall of a save", saving.stall.median, f"{save}, n = {saving.stall.n}"),
        ("Save until durable", durable.median, f"{save}, n = {durable.n}"),
        ("Machine lost until work resumes", restart, f"measured: {drill}"),
    ]
    if noticed is not None:
        last = noticed.median + saving.save.median
        notice = f"measured: detected in drill {ANNOUNCED}, n = {noticed.n}; save of {saving.model}"
        inputs.append(("Notice until work resumes", last + restart, f"{notice}; {drill}"))
        inputs.append(("Notice until all is saved", last, notice))
    waits = "Wait for another machine, added to both restarts"
    inputs += [
        ("Notice until the machine is gone", setting.notice_seconds, "recovery.campaign.notice_seconds"),
        (waits, setting.replacement_seconds, "assumed: recovery.campaign.replacement_seconds"),
    ]
    return CampaignFigures(
        **facts,
        inputs=tuple(CampaignInput(what=what, seconds=s, source=source) for what, s, source in inputs if s is not None),
        example=_why_no_forecast(setting, saved.hardware, saving, lost.nodes),
        prices=tuple(_price_text(price) for price in own_prices or ()),
        course=course,
        bad_day=bad_day,
    )


def _why_no_forecast(setting: CampaignSetting, saved: Hardware, saving: CheckpointFigures, drilled_nodes: int) -> str:
    """saved: on which saves were measured. drilled_nodes: processes of one host."""
    if (saved.instance_type, saved.nodes) == (setting.instance_type, setting.nodes):
        return ""
    return (
        f"No save was measured on {setting.machines}: stalls and saves are those of {saving.model} "
        f"({formatting.size(saving.state_bytes)}) on {saved.machines}, restarts those of a gang of {drilled_nodes} on "
        "one host. For your job, run the checkpoint suite with your model on its machines, and set recovery.campaign."
    )


def _expected_course(
    rate: InterruptionRate,
    seconds: float,
    failures: FailureModel,
    saving: SaveCost,
    restart: RestartCost,
    prices: tuple[Price, Price] | None,
) -> CampaignCourse:
    """rate: how often the gang is interrupted. seconds: of the campaign. prices: on spot and on demand."""
    interval = best_save_interval(failures, saving)
    expected = expected_campaign(seconds, rate, interval, failures, saving, restart)
    return CampaignCourse(
        announced_share=rate.notice_used,
        interval_seconds=interval,
        interruptions=seconds / rate.mtbf_seconds,  # they come also while the gang is down
        mtbf_seconds=rate.mtbf_seconds,
        recovered=expected.resumed,
        overhead=expected.overhead,
        stalled=expected.stalled / expected.seconds,
        recomputed=expected.recomputed / expected.seconds,
        restarting=expected.down_seconds / expected.seconds,
        savings=_spot_savings(*prices, expected.overhead) if prices else None,
    )


def _campaign_config(cases: Sequence[Case]) -> CampaignConfig | None:
    """The setting of the first case of the recovery suite that this version can read."""
    for case in cases:
        if case.suite == SUITE and isinstance(config := case.config.get("campaign"), dict):
            try:
                return CampaignConfig.model_validate(config)
            except ValidationError:
                continue
    return None


def _filled_setting(config: CampaignConfig, saved: Case | None) -> CampaignSetting:
    """What is left open is as in the case whose saves were measured, or as in the example."""
    machine = saved.hardware.instance_type if saved is not None else None
    name = config.instance_type or machine or EXAMPLE
    nodes = saved.hardware.nodes if saved is not None and name == machine else EXAMPLE_NODES
    filled = {
        "instance_type": name,
        "region": config.region or (saved and saved.cluster_setting("region")) or EXAMPLE_REGION,
        "nodes": config.nodes or nodes,
    }
    return CampaignSetting.model_validate(config.model_dump() | filled)


def _reclaimed_share(setting: CampaignSetting) -> tuple[float | None, str]:
    """Share of machines that are reclaimed within a month, and where that is from."""
    if setting.taken_per_month is not None:
        return setting.taken_per_month, "recovery.campaign.taken_per_month"
    band = interruption_band(setting.instance_type)
    if band is None:
        return None, ""
    share = f"{100 * band.low:g} to {100 * band.high:g} %"
    return band.high, f"upper end of {share} a month, {band.date}, {band.source}"


def _failure_model(setting: CampaignSetting, share: float, drain: Drain | None) -> FailureModel:
    """Machines that nobody takes away break as in a plan; of a type that the catalog does not have, that is unknown."""
    name, nodes = setting.instance_type, setting.nodes
    steady = hardware_failures(name, nodes) if name in instance_names() else FailureModel(nodes)
    notice, announced = setting.notice_seconds, setting.announced_share
    return replace(steady, low=share, high=share, notice_seconds=notice, announced=announced, drain=drain)


def _spot_on_demand_prices(setting: CampaignSetting, saved: Case, prices: PriceBook) -> tuple[Price, Price] | None:
    """On spot and on demand; None: one of them is not known. saved: whose saves were measured; a price of its own
    counts, where it is of these machines."""
    book = replace(prices, own=saved.own_prices)
    spot = book.price(setting.instance_type, "spot", setting.region)
    on_demand = book.price(setting.instance_type, "on_demand", setting.region)
    return (spot, on_demand) if spot and on_demand else None


def _price_text(price: Price) -> str:
    zones = ""
    if price.low_usd_per_hour < price.high_usd_per_hour:
        zones = f"{price.low_usd_per_hour:,.2f} to {price.high_usd_per_hour:,.2f} by zone, "
    market = price.market.replace("_", "-")
    return f"{market} {price.usd_per_hour:,.2f} USD an hour, {zones}{price.date}, {price.source}"


def _spot_savings(spot: Price, on_demand: Price, overhead: float) -> SpotSavings:
    """overhead: that is paid for on spot."""
    dearer = (1 + overhead) / on_demand.usd_per_hour
    return SpotSavings(
        median=1 - spot.usd_per_hour * dearer,
        low=1 - spot.high_usd_per_hour * dearer,
        high=1 - spot.low_usd_per_hour * dearer,
    )
