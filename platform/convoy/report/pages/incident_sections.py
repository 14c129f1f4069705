"""Parts of the training pages on failures and on what they cost: each takes the report and gives blocks or nothing."""

from collections.abc import Iterable

from convoy.display import charts, formatting
from convoy.display.page import Block, Heading, Table, Text, Tone, Value
from convoy.report.train_report import Goodput, Incident, TrainReport
from convoy.stats.spread import spread

_ROWS = 20


def incidents(report: TrainReport) -> tuple[Block, ...]:
    """What went wrong, newest first, and how soon the job got on."""
    if not report.incidents or report.started is None:
        return ()
    start = report.started
    rows = tuple(_row(incident, start) for incident in reversed(report.incidents[-_ROWS:]))
    headers = ("At", "What", "Detected", "Stopped", "Recovered", "Beyond", "Steps done again", "")
    left = len(report.incidents) - len(rows)
    more: tuple[Block, ...] = (Text(f"{left:,} earlier ones are in the report's JSON.", quiet=True),) if left else ()
    return (Heading("Incidents"), Text(_summary(report), quiet=True), Table(headers, rows), *more)


def goodput_value(report: TrainReport) -> Value:
    """The share of its time in which the job got on."""
    took = f"{formatting.duration(report.wall_seconds)}, {formatting.plural(len(report.generations), 'generation')}"
    if report.goodput is None or not report.steps:
        return Value("Goodput", "—", f"no step in {took}")
    n = len(report.incidents)
    tone: Tone = "warning" if n else "plain"
    return Value("Goodput", formatting.percent(report.goodput.share), f"of {took}, {_count(n)}", tone)


def goodput(report: TrainReport) -> tuple[Block, ...]:
    """Where each node's time went."""
    spent = report.goodput
    if spent is None or not report.steps:
        return ()
    note = (
        "Productive: steps and evaluations that the job goes on from. Measuring: of the machine, after the first step "
        "of a generation. Restarting: until the first step of a generation was done. Waiting: for ranks of other "
        "nodes, and at the end for the last commit and the export. Other: between two steps, mostly for the log."
    )
    bar = charts.stacked_bar("Seconds of the gang, mean over its nodes", _means(spent), unit="s")
    rows = tuple(
        (str(node.node), *(formatting.duration(seconds) for seconds in _parts(spent, i).values()))
        for i, node in enumerate(spent.nodes)
    )
    return (Heading("Goodput"), Text(note, quiet=True), bar, Table(("Node", *_NAMES), rows))


def deaf_nodes(report: TrainReport) -> str:
    """Which nodes have no way to learn that their machine will be taken away; empty: none, as far as they told."""
    deaf = [str(node) for node, sources in sorted(report.notice_sources.items()) if not sources]
    if not deaf:
        return ""
    if len(deaf) == len(report.notice_sources):
        return "no notice source"
    return f"no notice source on node{'s' if len(deaf) > 1 else ''} {', '.join(deaf)}"


_NAMES = ("Productive", "Recomputed", "Checkpoints", "Measuring", "Restarting", "Waiting", "Other")


def _parts(spent: Goodput, i: int) -> dict[str, float]:
    node = spent.nodes[i]
    seconds = (
        node.productive_seconds, node.recomputed_seconds, node.checkpoint_seconds, node.measuring_seconds,
        node.restarting_seconds, node.waiting_seconds, node.other_seconds,
    )  # fmt: skip
    return dict(zip(_NAMES, seconds, strict=True))


def _means(spent: Goodput) -> dict[str, float]:
    parts = [_parts(spent, i) for i in range(len(spent.nodes))]
    return {name.lower(): sum(part[name] for part in parts) / len(parts) for name in _NAMES}


def _row(incident: Incident, start: float) -> tuple[str, ...]:
    again = incident.steps_recomputed
    return (
        f"+ {formatting.duration(max(incident.t - start, 0.0))}",
        incident.what,
        _seconds(incident.detected_s),
        _seconds(incident.stopped_s),
        _seconds(incident.recovered_s),
        _seconds(incident.beyond_s),
        "" if again is None else f"{again:,}",
        incident.then,
    )


def _summary(report: TrainReport) -> str:
    all_of = report.incidents
    told = [
        _count(len(all_of)),
        _median("detected", (i.detected_s for i in all_of)),
        _median("recovered", (i.recovered_s for i in all_of)),
        f"{formatting.plural(sum(i.steps_recomputed or 0 for i in all_of), 'step')} done again",
    ]
    since = "Seconds count from the last sign of life of what failed, or from the notice."
    return f"{', '.join(filter(None, told))}. {since}"


def _median(what: str, seconds: Iterable[float | None]) -> str:
    figure = spread(s for s in seconds if s is not None)
    return "" if figure is None else f"{what} after {formatting.duration(figure.median)} (median, n = {figure.n:,})"


def _count(n: int) -> str:
    return formatting.plural(n, "incident") if n else "no incident"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else formatting.duration(seconds)
