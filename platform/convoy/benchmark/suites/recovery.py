"""The recovery suite: faults injected into gangs on this host, and whether each gang recovered.

Its one group is not a gang that measures but a list of drills, each of which forms gangs of its own
(`drill_worker.py`). The drills choose the model that they train, whatever the models of the benchmark are.
"""

from collections.abc import Iterator, Sequence

from convoy.benchmark.analysis import recovery
from convoy.benchmark.analysis.campaign import CampaignCourse, CampaignFigures, SpotSavings, campaign_figures
from convoy.benchmark.analysis.checkpoints import checkpoint_figures
from convoy.benchmark.analysis.recovery import DrillFigures
from convoy.benchmark.analysis.report import BenchReport
from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.pages.cases import sample_text
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.values import SampleMedian
from convoy.catalog.prices import PriceBook
from convoy.config.benchmark import BenchConfig
from convoy.config.run import RunConfig
from convoy.display import formatting
from convoy.display.page import Block, Callout, Column, Heading, Table, Text, columns, transposed


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One group for the whole benchmark; its variants are drills. Raises ConfigError for a drill that does not
    exist."""
    from convoy.drills.faults import drill_named  # fault injection is imported only where this suite runs

    for name in config.recovery.drills:
        drill_named("recovery.drills =", name)
    yield Group(
        name=SUITE.name,
        suite=SUITE.name,
        baseline=None,
        variants=tuple(VariantSpec(name=name) for name in dict.fromkeys(config.recovery.drills)),
        run=next(iter(runs.values())),
        measure=config.measure,
        recovery=config.recovery,
    )


def figures(cases: Sequence[Case], prices: PriceBook) -> dict[str, object]:
    """The results of the drills, and the campaign that is expected with them."""
    drills = recovery.drill_figures(cases)
    return {"recovery": drills, "campaign": campaign_figures(cases, checkpoint_figures(cases), drills, prices)}


_HOW = (
    "Each trial injects a fault into a real gang of processes on one host, which trains a small model. It counts as "
    "recovered only if the gang resumed as it should, no sample was lost or repeated, nothing was left behind and the "
    "final state is that of an undisturbed training. Seconds count from the fault; targets apply to medians."
)


def sections(report: BenchReport) -> tuple[Block, ...]:
    """What drills showed, and what a campaign on spot machines is expected to take."""
    return (*_drills(report.recovery), *(_campaign(report.campaign) if report.campaign else ()))


def _drills(drills: Sequence[DrillFigures]) -> tuple[Block, ...]:
    if not drills:
        return ()
    bad = [drill for drill in drills if drill.recovered_trials < drill.trials]
    table = columns(
        drills,
        Column("Drill", lambda d: f"{d.drill}, {formatting.plural(d.nodes, 'node')}"),
        Column("Recovered", lambda d: f"{d.recovered_trials}/{d.trials}"),
        Column("95 % interval", lambda d: f"{formatting.bounds(d.recovery_rate, formatting.percent)} %"),
        Column("Detected", lambda d: _compared_to_target(d.detected, d.target_detected_seconds)),
        Column("Target", lambda d: d.target_detected_seconds, formatting.duration),
        Column("Recovered after", lambda d: _compared_to_target(d.recovered, d.target_recovered_seconds)),
        Column("Target", lambda d: d.target_recovered_seconds, formatting.duration),
        Column("Past previous progress", lambda d: d.beyond, sample_text),
        Column("Steps recomputed", lambda d: d.steps_recomputed),
        Column("Samples lost", lambda d: d.samples_lost),
        Column("Samples repeated", lambda d: d.samples_repeated),
        Column(
            "Final state",
            lambda d: f"equal {d.states_equal}/{d.states_compared}" if d.states_compared else None,
            missing="not compared",
        ),
    )
    return (
        Heading("Recovery"),
        Text(_HOW, quiet=True),
        *(Callout(f"{d.drill}: {d.trials - d.recovered_trials} of {d.trials} not recovered", d.reason) for d in bad),
        table,
    )


def _compared_to_target(sample: SampleMedian | None, target: float | None) -> str | None:
    if sample is None:
        return None
    return sample_text(sample) + (", target missed" if target is not None and sample.median > target else "")


_EXPECTED = (
    "Computed by the planner's model of interruptions (docs/explanation/interruptions.md), from what was measured "
    "above and what the table says: no machine was rented for it. Machines are reclaimed independently, at a constant "
    "rate, and break as often as in a plan; the gang stops when it loses one, and resumes with another. Restarts are "
    "those of the drills, on one host: what a new machine and a larger state add is replacement_seconds. A bad day is "
    "deliberately bad, as if every day were one. How reliable recovery is, the drills show."
)


def _campaign(figures: CampaignFigures) -> tuple[Block, ...]:
    setting = figures.setting
    title = f"Campaign on spot machines (expected): {setting.machines}, {setting.region}, {setting.days:g} days"
    if figures.course is None:
        return (Heading(title), Text(f"Not computed: {figures.why}."))
    courses = [("Expected", figures.course), *([("Bad day", figures.bad_day)] if figures.bad_day else [])]
    return (
        Heading(title),
        *([Callout("An example, not a forecast", figures.example, "warning")] if figures.example else []),
        Text(_EXPECTED, quiet=True),
        Table(("Input", "Value", "From"), tuple(_inputs(figures))),
        transposed(columns(courses, *_OUTCOMES)),
    )


def _inputs(figures: CampaignFigures) -> Iterator[tuple[str, str, str]]:
    """Name, value and source of each."""
    if figures.taken_per_month is not None:
        share = formatting.percent(figures.taken_per_month)
        yield "Taken away within a month, per machine", share, figures.taken_source
    for each in figures.inputs:
        yield each.what, formatting.long_duration(each.seconds), each.source
    for price in figures.prices:
        value, _, source = price.partition(", ")
        yield "Price", value, source


def _savings(savings: SpotSavings) -> str:
    low, high = formatting.percent(savings.low), formatting.percent(savings.high)
    return f"{formatting.percent(savings.median)} ({low} to {high}, over zones)"


_OUTCOMES: tuple[Column[tuple[str, CampaignCourse]], ...] = (
    Column("", lambda named: named[0]),
    Column("Announced in time to save", lambda named: named[1].announced_share, formatting.percent),
    Column("Work between two saves", lambda named: named[1].interval_seconds, formatting.duration),
    Column("Interruptions in a campaign", lambda named: named[1].interruptions, formatting.significant),
    Column("Mean time between them", lambda named: named[1].mtbf_seconds, formatting.long_duration),
    Column("Resumed before the next one", lambda named: named[1].recovered, formatting.percent),
    Column("Overhead", lambda named: named[1].overhead, formatting.percent),
    Column("Share of time: saves", lambda named: named[1].stalled, formatting.percent),
    Column("Share of time: recomputed work", lambda named: named[1].recomputed, formatting.percent),
    Column("Share of time: restarts", lambda named: named[1].restarting, formatting.percent),
    Column("Cheaper than on-demand", lambda named: named[1].savings, _savings, missing="a price is not known"),
)

SUITE = Suite(
    name=recovery.SUITE,
    title="Recovery",
    meaning="faults injected into gangs on this host, and whether each gang recovered",
    groups=groups,
    figures=figures,
    sections=sections,
)
