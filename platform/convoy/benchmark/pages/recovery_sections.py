"""Parts of a benchmark's page on faults: what drills showed, and a campaign that is expected on spot machines."""

from convoy.benchmark.analysis.campaign import HOUR, CampaignCourse, CampaignFigures, Range
from convoy.benchmark.analysis.model import BenchReport
from convoy.benchmark.analysis.recovery import DrillFigures
from convoy.benchmark.pages.checkpoint_sections import told
from convoy.benchmark.results.samples import Sample
from convoy.display import formatting
from convoy.display.page import Block, Callout, Heading, Table, Text

_HOW = (
    "Each trial puts a fault into a real gang of processes on one host, which trains a small model. It counts as "
    "recovered only if the gang went on as it should, no sample was lost or repeated, nothing was left behind and the "
    "final state is that of an undisturbed training. Seconds count from the fault; targets are what medians keep to."
)

_EXPECTED = (
    "Computed by the planner's model of interruptions (docs/explanation/interruptions.md), from what was measured "
    "above and what the table says: no machine was bought for it. Machines are taken away independently, at a constant "
    "rate, and break as often as in a plan; the gang stops when it loses one, and resumes with another. Restarts are "
    "those of the drills, on one host: what a new machine and a larger state add is replacement_seconds. A bad day is "
    "deliberately bad, as if every day were one."
)

_RANGES = (
    "In brackets is a campaign with as many interruptions as 5 and as 95 of 100 campaigns have at most; before them is "
    "one with the median number. Shares of all time are expected values. How sure a recovery is, the drills show."
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
    title = f"Campaign on spot machines (expected): {machines}, {setting.region}, {setting.days:g} days"
    if found.why:
        return (Heading(title), Text(f"Not computed: {found.why}."))
    courses = (*found.courses, *found.bad_day)
    names = (*map(_name, found.courses), *(f"Bad day, {_name(course).lower()}" for course in found.bad_day))
    return (
        Heading(title),
        *_example(found, machines),
        Text(_EXPECTED, quiet=True),
        Table(("Input", "Value", "From"), tuple(_inputs(found))),
        Table(("", *names), tuple(zip(_OUTCOMES, *map(_outcomes, courses), strict=True))),
        Text(_RANGES, quiet=True),
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
        ("Mean time between interruptions of the gang", _time(found.mtbf_seconds), _RATE),
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


_RATE = "the row above, for all machines, and faults of their GPUs, as a plan assumes them"

_MEASURED = (
    ("stall_seconds", "Stall of a save"),
    ("durable_seconds", "Save until durable"),
    ("restart_seconds", "Machine lost until work resumes"),
    ("announced_seconds", "Notice until work resumes"),
    ("saved_seconds", "Notice until all is saved"),
)

_OUTCOMES = (
    "Work between two saves",
    "Interruptions in a campaign",
    "Mean time between them",
    "Resumed before the next one",
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
        formatting.long_duration(course.mtbf_seconds),
        formatting.percent(course.recovered.estimate),
        _range(course.overhead, formatting.percent),
        formatting.percent(course.stalled),
        formatting.percent(course.recomputed),
        formatting.percent(course.restarting),
        _savings(course),
    )


def _name(course: CampaignCourse) -> str:
    if course.announced_share == 0:
        return "None announced"
    return f"{formatting.percent(course.announced_share)} announced" if course.announced_share < 1 else "All announced"


def _savings(course: CampaignCourse) -> str:
    if course.savings is None or course.savings_by_zone is None:
        return "a price is not known"
    low, high = map(formatting.percent, course.savings_by_zone)
    return f"{formatting.percent(course.savings.median)} ({low} to {high}, over zones and numbers of interruptions)"


def _range(found: Range, form: formatting.Form) -> str:
    return f"{form(found.median)} ({form(found.low)} to {form(found.high)})"


def _percent(share: float | None) -> str:
    return "" if share is None else formatting.percent(share)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else formatting.long_duration(seconds)


def _hours(hours: float | None) -> str:
    return "" if hours is None else _time(hours * HOUR)
