"""Parts of a benchmark's page on faults: what drills showed, and a simulated campaign on spot machines."""

from convoy.benchmark.analysis.campaign import HOUR, CampaignFigures
from convoy.benchmark.analysis.campaign_simulation import CampaignCourse, Range
from convoy.benchmark.analysis.model import BenchReport
from convoy.benchmark.analysis.recovery import DrillFigures
from convoy.benchmark.pages.checkpoint_sections import told
from convoy.benchmark.results.samples import Sample
from convoy.display import formatting
from convoy.display.page import Block, Callout, Heading, Table, Text
from convoy.stats.interval import Interval

_HOW = (
    "Each trial puts a fault into a real gang of processes on one host, which trains a small model. It counts as "
    "recovered only if the gang went on as it should, no sample was lost or repeated, nothing was left behind and the "
    "final state is that of an undisturbed training. Seconds count from the fault; targets are what medians keep to."
)

_SIMULATED = (
    "Simulated, from what was measured above and what the table says: no machine was bought for it. Machines are taken "
    "away independently, at a constant rate; the gang stops when it loses one, and goes on with another. Restarts are "
    "those of the drills, on one host: what a new machine and a larger state add is replacement_seconds. A bad day is "
    "deliberately bad, and simulated as if every day were one."
)

_RECOVERED = (
    "The interval of what recovered is Wilson's over interruptions that were simulated: it says how many there were, "
    "and nothing of how sure a recovery is, which the drills show."
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
    machines = f"{setting.nodes} × {setting.instance_type}"
    title = f"Campaign on spot machines (simulated): {machines}, {setting.region}, {setting.days:g} days"
    if found.why:
        return (Heading(title), Text(f"Not simulated: {found.why}."))
    courses = (*found.courses, *found.bad_day)
    names = (*map(_name, found.courses), *(f"Bad day, {_name(course).lower()}" for course in found.bad_day))
    return (
        Heading(title),
        *_example(found, machines),
        Text(_SIMULATED, quiet=True),
        Table(("Input", "Value", "From"), tuple(_inputs(found))),
        Table(("", *names), tuple(zip(_OUTCOMES, *map(_outcomes, courses), strict=True))),
        Text(_check(found), quiet=True),
    )


def _example(found: CampaignFigures, machines: str) -> tuple[Block, ...]:
    """What is read first where it is of other machines than saves were measured on."""
    if not found.example or found.saved_state_bytes is None or found.drilled_nodes is None:
        return ()
    text = (
        f"No save was measured on {machines}: stalls and saves are those of {found.saved_model} "
        f"({formatting.size(found.saved_state_bytes)}) on {found.saved_on}, restarts those of "
        f"a gang of {found.drilled_nodes} on one host. For your job, run the checkpoint suite with your model on its "
        "machines, and set recovery.campaign."
    )
    return (Callout("An example, not a forecast", text, "warning"),)


_HEADERS = (
    "Drill", "Recovered", "95 % interval", "Detected", "Target", "Recovered after", "Target", "Beyond", "Steps redone",
    "Samples lost", "Samples repeated", "Final state",
)  # fmt: skip


def _row(drill: DrillFigures) -> tuple[str, ...]:
    return (
        f"{drill.drill}, {formatting.plural(drill.nodes, 'node')}",
        f"{drill.recovered_trials}/{drill.trials}",
        f"{formatting.bounds(drill.recovery_rate, formatting.percent)} %",
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
    return "" if seconds is None else formatting.duration(seconds)


def _inputs(found: CampaignFigures) -> list[tuple[str, str, str]]:
    setting = found.setting
    rows = [
        ("Taken away within a month, of each machine", _percent(found.taken_per_month), found.taken_source),
        ("Mean time between interruptions of the gang", _time(found.mtbf_seconds), "the row above, for all machines"),
        ("The same on a bad day", _hours(setting.bad_day_hours), "assumed: recovery.campaign.bad_day_hours"),
        *((what, _time(getattr(found, name)), f"measured: {found.measured.get(name)}") for name, what in _MEASURED),
        ("Notice until the machine is gone", _time(setting.notice_seconds), "recovery.campaign.notice_seconds"),
        (
            "Another machine is there, added to both restarts after",
            formatting.duration(setting.replacement_seconds),
            "assumed: recovery.campaign.replacement_seconds",
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


def _outcomes(course: CampaignCourse) -> tuple[str, ...]:
    return (
        formatting.duration(course.interval_seconds),
        _range(course.interruptions, formatting.significant),
        "no interruption came" if course.mtbf_seconds is None else formatting.long_duration(course.mtbf_seconds),
        _recovered(course.recovered),
        _range(course.overhead, formatting.percent),
        formatting.percent(course.stalled),
        formatting.percent(course.recomputed),
        formatting.percent(course.restarting),
        _savings(course),
    )


def _check(found: CampaignFigures) -> str:
    bad = f", of bad days over {found.bad_campaigns:,}" if found.bad_day else ""
    ranges = f"Medians over {found.campaigns:,} campaigns{bad}, and between what 90 of 100 of them lie. {_RECOVERED}"
    told = " and, on bad days, ".join(
        f"{formatting.percent(course.expected_overhead)} ({formatting.percent(course.mean_overhead)} was simulated)"
        for course in (*found.courses[-1:], *found.bad_day[-1:])
        if course.expected_overhead is not None
    )
    return f"{ranges} Without notices, Young and Daly expect an overhead of {told}." if told else ranges


def _name(course: CampaignCourse) -> str:
    if course.announced_share == 0:
        return "None announced"
    return f"{formatting.percent(course.announced_share)} announced" if course.announced_share < 1 else "All announced"


def _recovered(share: Interval | None) -> str:
    if share is None:
        return "no interruption came"
    return f"{round(share.estimate * share.n):,}/{share.n:,} ({formatting.bounds(share, formatting.percent)} %)"


def _savings(course: CampaignCourse) -> str:
    if course.savings is None or course.savings_by_zone is None:
        return "a price is not known"
    low, high = map(formatting.percent, course.savings_by_zone)
    return f"{formatting.percent(course.savings.median)} ({low} to {high}, over zones and campaigns)"


def _range(found: Range, form: formatting.Form) -> str:
    return f"{form(found.median)} ({form(found.low)} to {form(found.high)})"


def _percent(share: float | None) -> str:
    return "" if share is None else formatting.percent(share)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else formatting.long_duration(seconds)


def _hours(hours: float | None) -> str:
    return "" if hours is None else _time(hours * HOUR)
