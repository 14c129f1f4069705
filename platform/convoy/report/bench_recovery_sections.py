"""Parts of a benchmark's page on faults: what drills showed, and a simulated campaign on spot machines."""

from convoy.report import numbers
from convoy.report.bench_campaign import CampaignCourse, CampaignFigures, Range
from convoy.report.bench_checkpoint_sections import told
from convoy.report.bench_recovery import DrillFigures
from convoy.report.bench_report import BenchReport
from convoy.report.page import Block, Callout, Heading, Table, Text
from convoy.results.samples import Sample
from convoy.stats.interval import Interval

_HOW = (
    "Each trial puts a fault into a real gang of processes on one host, which trains a small model. It counts as "
    "recovered only if the gang went on as it should, no sample was lost or repeated, nothing was left behind and the "
    "final state is that of an undisturbed training. Seconds count from the fault; targets are what medians keep to."
)

_SIMULATED = (
    "Simulated, from what was measured above and what the table says: no machine was bought for it. Machines are taken "
    "away independently, at a constant rate; the gang stops when it loses one, and goes on with another. Restarts are "
    "those of the drills, on one host: what a new machine and a larger state add is replacement_seconds."
)


def recovery(report: BenchReport) -> tuple[Block, ...]:
    """Nothing where no drill was run."""
    if not report.recovery:
        return ()
    bad = [drill for drill in report.recovery if drill.recovered_trials < drill.trials]
    return (
        Heading("Recovery"),
        Text(_HOW, quiet=True),
        *(Callout(f"{d.drill}: {d.trials - d.recovered_trials} of {d.trials} not recovered", d.reason) for d in bad),
        Table(_HEADERS, tuple(_row(drill) for drill in report.recovery)),
    )


def campaign(report: BenchReport) -> tuple[Block, ...]:
    """Nothing where no recovery suite was run."""
    found = report.campaign
    if found is None:
        return ()
    setting = found.setting
    title = (
        f"Simulated campaign: {setting.nodes} × {setting.instance_type}, spot, {setting.region}, {setting.days:g} days"
    )
    if found.why:
        return (Heading(title), Text(f"Not simulated: {found.why}."))
    return (
        Heading(title),
        Text(_SIMULATED, quiet=True),
        Table(("Input", "Value", "From"), tuple(_inputs(found))),
        Table(
            ("", *(_name(course) for course in found.courses)),
            tuple(zip(_OUTCOMES, *(_outcomes(course, found) for course in found.courses), strict=True)),
        ),
        Text(_check(found), quiet=True),
    )


_HEADERS = (
    "Drill", "Recovered", "95 % interval", "Detected", "Target", "Recovered after", "Target", "Beyond", "Steps redone",
    "Samples lost", "Samples repeated", "Final state",
)  # fmt: skip


def _row(drill: DrillFigures) -> tuple[str, ...]:
    return (
        f"{drill.drill}, {numbers.plural(drill.nodes, 'node')}",
        f"{drill.recovered_trials}/{drill.trials}",
        f"{numbers.bounds(drill.recovery_rate, numbers.percent)} %",
        _beside(drill.detected, drill.target_detected_seconds),
        _target(drill.target_detected_seconds),
        _beside(drill.recovered, drill.target_recovered_seconds),
        _target(drill.target_recovered_seconds),
        told(drill.beyond),
        str(drill.steps_recomputed),
        str(drill.samples_lost),
        str(drill.samples_repeated),
        f"equal {drill.states_equal}/{drill.states_compared}" if drill.states_compared else "not compared",
    )


def _beside(figure: Sample | None, target: float | None) -> str:
    missed = ", target missed" if figure is not None and target is not None and figure.median > target else ""
    return f"{told(figure)}{missed}"


def _target(seconds: float | None) -> str:
    return "" if seconds is None else numbers.duration(seconds)


def _inputs(found: CampaignFigures) -> list[tuple[str, str, str]]:
    setting = found.setting
    rows = [
        ("Taken away within a month, of each machine", _percent(found.taken_per_month), found.taken_source),
        ("Mean time between interruptions of the gang", _time(found.mtbf_seconds), "the row above, for all machines"),
        *((what, _time(getattr(found, name)), f"measured: {found.measured.get(name)}") for name, what in _MEASURED),
        ("Notice until the machine is gone", _time(setting.notice_seconds), "recovery.campaign.notice_seconds"),
        (
            "Another machine is there, added to both restarts after",
            numbers.duration(setting.replacement_seconds),
            "recovery.campaign.replacement_seconds",
        ),
        *(("Price", price.partition(", ")[0], price.partition(", ")[2]) for price in found.prices),
    ]
    return [row for row in rows if row[1]]


_MEASURED = (
    ("stall_seconds", "Stall of a save"),
    ("durable_seconds", "Save until durable"),
    ("restart_seconds", "Machine lost until work goes on"),
    ("announced_seconds", "Notice until work goes on"),
    ("saved_seconds", "Notice until all is saved"),
)

_OUTCOMES = (
    "Work between two saves",
    "Interruptions in a campaign",
    "Mean time between them",
    "Recovered before the next one",
    "Overhead",
    "Of all time: saves",
    "Of all time: work done again",
    "Of all time: restarts",
    "Cheaper than on-demand",
)


def _outcomes(course: CampaignCourse, found: CampaignFigures) -> tuple[str, ...]:
    return (
        numbers.duration(course.interval_seconds),
        _range(course.interruptions, numbers.significant),
        "no interruption came" if course.mtbf_seconds is None else numbers.long_duration(course.mtbf_seconds),
        _recovered(course.recovered),
        _range(course.overhead, numbers.percent),
        numbers.percent(course.stalled),
        numbers.percent(course.recomputed),
        numbers.percent(course.restarting),
        _range(course.savings, numbers.percent) if course.savings is not None else "a price is not known",
    )


def _check(found: CampaignFigures) -> str:
    ranges = f"Medians over {found.campaigns:,} campaigns, and between what 90 of 100 of them lie."
    checked = [course for course in found.courses if course.expected_overhead is not None]
    if not checked:
        return ranges
    course = checked[-1]
    assert course.expected_overhead is not None
    return (
        f"{ranges} Without notices, Young and Daly expect an overhead of {numbers.percent(course.expected_overhead)} "
        f"for these inputs; over all campaigns {numbers.percent(course.mean_overhead)} was simulated."
    )


def _name(course: CampaignCourse) -> str:
    if course.announced_share == 0:
        return "None announced"
    return f"{numbers.percent(course.announced_share)} announced" if course.announced_share < 1 else "All announced"


def _recovered(share: Interval | None) -> str:
    if share is None:
        return "no interruption came"
    return f"{round(share.estimate * share.n):,}/{share.n:,} ({numbers.bounds(share, numbers.percent)} %)"


def _range(found: Range, form: numbers.Form) -> str:
    return f"{form(found.median)} ({form(found.low)} to {form(found.high)})"


def _percent(share: float | None) -> str:
    return "" if share is None else numbers.percent(share)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else numbers.long_duration(seconds)
