"""A training on spot machines, simulated with the stalls and recoveries that were measured. Pure, and seeded: the same
cases give the same campaigns."""

from collections.abc import Sequence

from convoy.benchmark.analysis import checkpoints
from convoy.benchmark.analysis.campaign_machines import (
    PriceRatio,
    Setting,
    asked_for,
    is_example,
    price_ratio,
    setting_of,
    taken,
)
from convoy.benchmark.analysis.campaign_simulation import CampaignCourse, course
from convoy.benchmark.analysis.checkpoints import CheckpointFigures
from convoy.benchmark.analysis.recovery import DrillFigures
from convoy.benchmark.results.case import Case
from convoy.catalog.interruptions import mtbf_seconds
from convoy.catalog.prices import PriceBook
from convoy.report.train_report import Fact
from convoy.stats.simulation import Assumed

CAMPAIGNS, BAD_CAMPAIGNS = 1000, 100
"""That are simulated: of bad days fewer, in each of which more happens."""

HOUR, DAY = 3600.0, 86400.0

UNANNOUNCED, ANNOUNCED = "node-kill", "spot-notice"
"""Drills of a machine that is lost, and of one that has notice."""


class CampaignFigures(Fact):
    """What was assumed, where it comes from, and what came of it."""

    setting: Setting
    example: bool = True
    """Saves were measured on other machines, or on another number of them."""
    campaigns: int = CAMPAIGNS
    bad_campaigns: int = BAD_CAMPAIGNS
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
    saved_model: str = ""
    saved_state_bytes: float | None = None
    saved_on: str = ""
    """Machines on which saves of that model were measured."""
    drilled_nodes: int | None = None
    """Of the gang that was interrupted: processes of one host."""
    prices: tuple[str, ...] = ()
    courses: tuple[CampaignCourse, ...] = ()
    bad_day: tuple[CampaignCourse, ...] = ()
    """The same where interruptions come as often as on a bad day, all the time; none where that was not asked for."""
    why: str = ""
    """Why nothing is simulated."""


def campaign(
    cases: Sequence[Case],
    checkpoints: Sequence[CheckpointFigures],
    drills: Sequence[DrillFigures],
    prices: PriceBook,
) -> CampaignFigures | None:
    """None where no recovery suite was run."""
    asked = asked_for(cases)
    if asked is None:
        return None
    saving = max((c for c in checkpoints if c.stall and c.save), key=lambda c: c.state_bytes, default=None)
    saved = _case_of(saving, cases)
    setting = setting_of(asked, saved)
    share, source = taken(setting)
    lost = next((d for d in drills if d.drill == UNANNOUNCED and d.recovered is not None), None)
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
        example=is_example(setting, saved),
        taken_per_month=share,
        taken_source=source,
        mtbf_seconds=mtbf_seconds(share, setting.nodes),
        saved_on=saved.hardware.machines if saved is not None else "",
        **_measured(setting, saving, lost, next((d for d in drills if d.drill == ANNOUNCED), None)),
    )
    return _simulated(told, price_ratio(setting, saved, prices))


def _case_of(saving: CheckpointFigures | None, cases: Sequence[Case]) -> Case | None:
    """The one that the figures are of."""
    of = (checkpoints.SUITE, saving.group, saving.case) if saving is not None else None
    return next((case for case in cases if (case.suite, case.group, case.name) == of), None)


def _simulated(told: CampaignFigures, ratio: PriceRatio | None) -> CampaignFigures:
    """With its courses: at the rate of the band, and at that of a bad day."""
    assert told.mtbf_seconds is not None
    shares, hours = _shares(told), told.setting.bad_day_hours
    bad = () if hours is None else tuple(_course(told, s, hours * HOUR, BAD_CAMPAIGNS, ratio) for s in shares)
    return told.model_copy(
        update={
            "prices": ratio.sources if ratio is not None else (),
            "courses": tuple(_course(told, s, told.mtbf_seconds, CAMPAIGNS, ratio) for s in shares),
            "bad_day": bad,
        }
    )


def _measured(
    setting: Setting, saving: CheckpointFigures, lost: DrillFigures, announced: DrillFigures | None
) -> dict[str, object]:
    """What campaigns take from measurements."""
    assert saving.stall is not None
    assert saving.save is not None
    assert lost.recovered is not None
    found: dict[str, object] = {
        "saved_model": saving.model,
        "saved_state_bytes": saving.state_bytes,
        "drilled_nodes": lost.nodes,
        "stall_seconds": saving.stall.median,
        "durable_seconds": saving.durable.median if saving.durable else saving.save.median,
        "restart_seconds": lost.recovered.median + setting.replacement_seconds,
    }
    told = {
        "stall_seconds": f"{saving.case}, {saving.model}, n = {saving.stall.n}",
        "durable_seconds": f"{saving.case}, {saving.model}, n = {(saving.durable or saving.save).n}",
        "restart_seconds": f"drill {UNANNOUNCED}, n = {lost.recovered.n}",
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


def _course(
    told: CampaignFigures, share: float, mtbf: float, campaigns: int, ratio: PriceRatio | None
) -> CampaignCourse:
    assert told.stall_seconds is not None
    assert told.restart_seconds is not None
    assumed = Assumed(
        seconds=told.setting.days * DAY,
        mtbf_seconds=mtbf,
        stall_seconds=told.stall_seconds,
        durable_seconds=told.durable_seconds or 0.0,
        restart_seconds=told.restart_seconds,
        announced_share=share,
        announced_seconds=told.announced_seconds or 0.0,
    )
    return course(assumed, campaigns, told.setting.seed, ratio)
