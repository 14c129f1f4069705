"""Parts of the training pages on failures and on what they cost: each takes the report and gives blocks or nothing."""

from collections.abc import Callable, Iterable

from convoy.display import charts, formatting
from convoy.display.page import Block, Callout, Column, Heading, Text, Tone, Value, columns
from convoy.report.analysis.timeline import nodes_in_words
from convoy.report.train_report import NodeTime, TrainReport
from convoy.stats.spread import spread

_ROWS = 20


def incidents(report: TrainReport) -> tuple[Block, ...]:
    """What went wrong, newest first, and how soon the job recovered."""
    if not report.incidents or report.started is None:
        return ()
    start = report.started
    newest_first = report.incidents[: -_ROWS - 1 : -1]
    table = columns(
        newest_first,
        Column("At", lambda i: max(i.t - start, 0.0), lambda seconds: f"+ {formatting.duration(seconds)}"),
        Column("What", lambda i: i.what),
        Column("Detected", lambda i: i.detected_s, formatting.duration),
        Column("Stopped", lambda i: i.stopped_s, formatting.duration),
        Column("Recovered", lambda i: i.recovered_s, formatting.duration),
        Column("Past previous progress", lambda i: i.beyond_s, formatting.duration),
        Column("Steps recomputed", lambda i: i.steps_recomputed, formatting.integer),
        Column("", lambda i: i.then),
    )
    left = len(report.incidents) - len(newest_first)
    more: tuple[Block, ...] = (Text(f"{left:,} earlier ones are in the report's JSON.", quiet=True),) if left else ()
    return (Heading("Incidents"), Text(_summary(report), quiet=True), table, *more)


def trouble_callouts(report: TrainReport) -> tuple[Block, ...]:
    """A callout for each tier that does not work and each slow node of a job that runs."""
    if report.outcome.state != "running":
        return ()
    others = {tier.uri for tier in report.tiers} - {trouble.tier for trouble in report.storage_troubles}
    saves = "saves go to another tier." if others else "nothing can be saved meanwhile."
    storage = (
        (f"Storage {t.tier}: {t.problem}", f"Seen on {nodes_in_words(t.nodes)}. Training continues; {saves}")
        for t in report.storage_troubles
    )
    advice = "Nothing is lost; it is worth looking at its clocks, its memory and its neighbours."
    slow = (
        (f"Node {n.node} is slow", f"The others wait for it {formatting.percent(n.share)} of their time. {advice}")
        for n in report.slow_nodes
    )
    return tuple(Callout(title, text, "warning") for title, text in (*storage, *slow))


def goodput_value(report: TrainReport) -> Value:
    """The share of its time in which the job progressed."""
    took = f"{formatting.duration(report.wall_seconds)}, {formatting.plural(len(report.generations), 'generation')}"
    if report.goodput is None or not report.steps:
        return Value("Goodput", "—", f"no step in {took}")
    n = len(report.incidents)
    tone: Tone = "warning" if n else "plain"
    return Value("Goodput", formatting.percent(report.goodput.share), f"of {took}, {_incident_count(n)}", tone)


def goodput(report: TrainReport) -> tuple[Block, ...]:
    """Where each node's time went."""
    spent = report.goodput
    if spent is None or not report.steps:
        return ()
    note = (
        "Productive: steps and evaluations that count towards the result. Measuring: of the machine, after the first "
        "step of a generation. Restarting: until the first step of a generation was done. Waiting: for ranks of other "
        "nodes, and at the end for the last commit and the export. Other: between two steps, mostly for the log."
    )
    if report.outcome.state == "running":
        note += " While the gang runs, a step that is late counts as waiting, too."
    means = {name.lower(): sum(map(part, spent.nodes)) / len(spent.nodes) for name, part in _PARTS.items()}
    bar = charts.stacked_bar("Seconds of the gang, mean over its nodes", means, unit="s")
    parts = [Column[NodeTime](name, part, formatting.duration) for name, part in _PARTS.items()]
    table = columns(spent.nodes, Column("Node", lambda node: node.node), *parts)
    return (Heading("Goodput"), Text(note, quiet=True), bar, table)


def nodes_without_notices(report: TrainReport) -> str:
    """The nodes without a source of notices, as far as nodes reported; empty: none."""
    deaf = [str(node) for node, sources in sorted(report.notice_sources.items()) if not sources]
    if not deaf:
        return ""
    if len(deaf) == len(report.notice_sources):
        return "no notice source"
    return f"no notice source on node{'s' if len(deaf) > 1 else ''} {', '.join(deaf)}"


_PARTS: dict[str, Callable[[NodeTime], float]] = {
    "Productive": lambda node: node.productive_seconds,
    "Recomputed": lambda node: node.recomputed_seconds,
    "Checkpoints": lambda node: node.checkpoint_seconds,
    "Measuring": lambda node: node.measuring_seconds,
    "Restarting": lambda node: node.restarting_seconds,
    "Waiting": lambda node: node.waiting_seconds,
    "Other": lambda node: node.other_seconds,
}


def _summary(report: TrainReport) -> str:
    all_of = report.incidents
    facts = [
        _incident_count(len(all_of)),
        _median_text("detected", (i.detected_s for i in all_of)),
        _median_text("recovered", (i.recovered_s for i in all_of)),
        f"{formatting.plural(sum(i.steps_recomputed or 0 for i in all_of), 'step')} recomputed",
    ]
    since = "Seconds count from the last sign of life of what failed, or from the notice."
    return f"{', '.join(filter(None, facts))}. {since}"


def _median_text(what: str, seconds: Iterable[float | None]) -> str:
    figure = spread(s for s in seconds if s is not None)
    return "" if figure is None else f"{what} after {formatting.duration(figure.median)} (median, n = {figure.n:,})"


def _incident_count(n: int) -> str:
    return formatting.plural(n, "incident") if n else "no incident"
