"""Parts of the training pages: each takes the report and gives blocks, or none where nothing is known."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from convoy.display import charts, formatting
from convoy.display.page import Block, Callout, Code, Column, Entry, Heading, Progress, Table, Text, Timeline, columns
from convoy.job.events.gang import FirstCause, cause_details, cause_in_words, cause_subject, cause_verb
from convoy.report.analysis.outcome import state_word
from convoy.report.train_report import Generation, NetworkUse, Tier, TrainReport

_TIMELINE_ENTRIES, _CHECKPOINTS = 40, 10
"""The most of each on a page."""

_EVIDENCE = {
    "agree": "NCCL's log and NIC counters agree",
    "disagree": "NCCL's log; the NIC counters show no such traffic",
    "absent": "NCCL's log",
}

_RESUME = "Its state is saved: start the job again to resume it, with a higher limit if one was reached."

_ENDING = "If this page stays as it is, `convoy show` reports how the run ended."


def outcome_callouts(report: TrainReport, *, of_script: bool = False) -> tuple[Block, ...]:
    """What went wrong, or why the job stopped early; nothing for a job that runs or has finished.

    of_script: a script saves its own checkpoints, and may report no steps.
    """
    outcome = report.outcome
    at = "" if of_script and not report.step else f" at step {report.step:,}"
    newest = "" if of_script else newest_checkpoint_line(report)
    match outcome.state:
        case "stopped":
            return (Callout(f"Stopped{at}", _sentences(outcome.reason, _RESUME), "warning"),)
        case "preempted" | "lost":
            title = f"{state_word(report).capitalize()}{at}"
            return (Callout(title, _sentences(outcome.reason, newest), "warning"),)
        case "failed":
            return _failure_callout(outcome.cause, at, newest)
        case "running" if outcome.notice:
            return (Callout(f"Ending{at}", _sentences(outcome.reason, newest, _ENDING), "warning"),)
        case "running" if outcome.cause is not None:
            return (Callout("Restarting in place", _sentences(cause_in_words(outcome.cause), newest), "warning"),)
    return ()


def _failure_callout(cause: FirstCause | None, at: str, newest: str) -> tuple[Block, ...]:
    if cause is None:
        return (Callout(f"Failed{at}", "No worker's end was recorded, so the first cause is unknown."),)
    title = f"{cause_subject(cause).capitalize()} {cause_verb(cause)}{at}"
    tail: tuple[Block, ...] = (Text("Its last lines", quiet=True), Code(cause.log_tail)) if cause.log_tail else ()
    return (Callout(title, _sentences(cause_details(cause), cause.reason, newest)), *tail)


def newest_checkpoint_line(report: TrainReport) -> str:
    """What a job that ended now would resume from."""
    newest = report.checkpoints[-1].step if report.checkpoints else None
    return "No checkpoint exists yet." if newest is None else f"The newest checkpoint holds step {newest:,}."


def gang_facts(report: TrainReport) -> list[str]:
    """The newest generation: its ranks, its number and its run."""
    if not report.generations:
        return []
    newest = report.generations[-1]
    ranks = f"{formatting.plural(newest.world_size, 'rank')} on {formatting.plural(newest.nodes, 'node')}"
    return [ranks, *([f"generation {newest.number}"] if newest.number else []), *([newest.run] if newest.run else [])]


def network_facts(uses: Sequence[NetworkUse]) -> list[str]:
    """What carried the traffic between hosts, and what shows it: one fact for the ranks that are alike."""
    return [
        f"{'network unknown' if use.verdict == 'unknown' else use.name}, "
        f"{use.ranks} of {formatting.plural(use.world_size, 'rank')} ({_EVIDENCE[use.counters]})"
        for use in uses
    ]


def network_callouts(uses: Sequence[NetworkUse]) -> tuple[Block, ...]:
    """A callout for ranks that use TCP, with the first cause and the fix."""
    return tuple(
        Callout(
            f"{use.ranks} of {formatting.plural(use.world_size, 'rank')} use TCP between hosts",
            " ".join(filter(None, (use.cause and f"First cause: {use.cause}.", use.fix))),
            "warning",
        )
        for use in uses
        if use.verdict == "tcp"
    )


def progress(report: TrainReport) -> tuple[Block, ...]:
    """How far the job is, and when it will be done."""
    if report.target_steps is None:
        return ()
    eta = report.eta_seconds
    detail = "" if eta is None or report.outcome.notice else f"{formatting.duration(eta)} left"
    return (Progress("Step", min(report.step, report.target_steps), report.target_steps, detail),)


def curves(report: TrainReport) -> tuple[Block, ...]:
    """Loss with validation, and tokens per second over the steps."""
    training = charts.Series("training", [(s.step, s.loss) for s in report.steps])
    validation = charts.Series("validation", [(v.step, v.loss) for v in report.validations], dots=True)
    losses = [s for s in (training, validation) if s.points]
    if not losses:
        return ()
    loss = charts.curves("Loss", losses, loss_unit(report))
    if not report.steps:
        return (loss,)
    rates = charts.Series(f"{report.unit} per second", [(s.step, s.tokens_per_second) for s in report.steps])
    return (loss, charts.curves("Throughput", [rates], f"{report.unit} per second", from_zero=True))


def loss_unit(report: TrainReport) -> str:
    """What a loss is a mean of."""
    return "nats per token" if report.unit == "tokens" else "mean loss"


def optimizer_curves(report: TrainReport) -> tuple[Block, ...]:
    if not report.steps:
        return ()
    norms = charts.Series("gradient norm", [(s.step, s.grad_norm) for s in report.steps])
    rates = charts.Series("learning rate", [(s.step, s.lr) for s in report.steps])
    return (
        charts.curves("Gradient norm, before clipping", [norms], "norm", from_zero=True),
        charts.curves("Learning rate", [rates], "rate", from_zero=True),
    )


def step_breakdown(report: TrainReport, detailed: bool = False) -> tuple[Block, ...]:
    """Where a step's time goes: a stacked bar, and the figures as a table if `detailed`."""
    times = report.step_time
    if times is None and not report.steps:
        return ()
    if times is None:
        return (Heading("Step time"), Text(f"Not measured yet: the first {report.warmup_steps} steps are warm-up."))
    bar = charts.stacked_bar("Median of each part", {name: part.median for name, part in times.parts.items()})
    around = (
        f"Rank 0's wall time. A step takes {formatting.duration(times.total.median)} "
        f"({formatting.quartiles(times.total, formatting.duration)}, warm-up of {report.warmup_steps} steps left out). "
        f"Apart from steps: checkpoints {formatting.duration(report.checkpoint_seconds)}, "
        f"evaluation {formatting.duration(report.evaluation_seconds)} in all."
    )
    blocks: tuple[Block, ...] = (Heading("Step time"), Text(around, quiet=True), bar)
    if not detailed:
        return blocks
    whole = times.total.median
    table = columns(
        times.parts.items(),
        Column("Part", lambda row: row[0]),
        Column("Median", lambda row: row[1].median, formatting.duration),
        Column("IQR", lambda row: f"{formatting.duration(row[1].q1)} to {formatting.duration(row[1].q3)}"),
        Column("% of median step", lambda row: row[1].median / whole if whole else None, formatting.percent),
    )
    return (*blocks, table)


def ranks_section(report: TrainReport) -> tuple[Block, ...]:
    if not report.ranks:
        return ()
    form = formatting.rate_of(report.unit)
    table = columns(
        report.ranks,
        Column("Rank", lambda r: r.rank),
        Column("Node", lambda r: r.node),
        Column("Throughput", lambda r: r.tokens_per_second, lambda rate: form(rate.median), "not measured"),
        Column("Spread", lambda r: r.tokens_per_second, lambda rate: formatting.quartiles(rate, form)),
        Column("Memory peak", lambda r: r.memory_peak_bytes, formatting.size, "not measured"),
        Column("Matmul rate", lambda r: r.matmul_tflops, formatting.in_unit("TFLOP/s"), "not measured"),
    )
    return (Heading("Ranks"), table)


def samples(report: TrainReport) -> tuple[Block, ...]:
    """What the model wrote."""
    if not report.samples:
        return ()
    step = report.samples[0].step
    texts = tuple(Code(f"{sample.prompt}{sample.text}") for sample in report.samples)
    prompts = ", ".join(repr(s.prompt) for s in report.samples)
    return (Heading("Generated text"), Text(f"At step {step:,}, continuing {prompts}.", quiet=True), *texts)


def startup(report: TrainReport) -> tuple[Block, ...]:
    """The time from the workers' start to their first step."""
    if not report.startup:
        return ()
    end = report.startup[-1]
    note = f"{formatting.duration(end.at_seconds)} from the workers' start to “{_phase_text(end.name)}”, slowest rank."
    bar = charts.stacked_bar(
        "Time to reach each point", {_phase_text(p.name): p.took_seconds for p in report.startup}, unit="s"
    )
    return (Heading("Start-up"), Text(note, quiet=True), bar)


def generations_and_checkpoints(report: TrainReport) -> tuple[Block, ...]:
    """The generations, where there was more than one, and the newest checkpoints."""
    blocks: list[Block] = []
    if len(report.generations) > 1:
        table = columns(
            report.generations,
            Column("", lambda g: g.number),
            Column("Ranks", lambda g: f"{g.world_size} on {formatting.plural(g.nodes, 'node')}"),
            *([Column("Engine", lambda g: g.engine or "Convoy")] if any(g.engine for g in report.generations) else []),
            Column("From", _origin),
            Column("Why", lambda g: g.why),
            Column("Outcome", lambda g: f"{g.outcome}, step {g.last_step:,}"),
            Column("Time", lambda g: g.seconds, formatting.duration),
        )
        blocks += [Heading("Generations"), table]
    return (*blocks, *checkpoints(report))


def _origin(g: Generation) -> str:
    return "the start" if g.parent_step is None else f"step {g.parent_step:,} of generation {g.parent_generation}"


def failed_saves(report: TrainReport) -> tuple[Block, ...]:
    """A warning that nothing is saved any more, while training continues."""
    alert = report.alert
    if alert is None:
        return ()
    lost = "Nothing is saved yet" if alert.newest is None else f"Everything after step {alert.newest:,} would be lost"
    title = f"The last {formatting.plural(alert.failures, 'checkpoint')} failed"
    return (Callout(title, f"{lost} if the gang failed now. {alert.error}", "warning"),)


def save_troubles(report: TrainReport) -> list[str]:
    """The saves that failed or were skipped, a few words for each kind."""
    kinds = {
        "skipped": report.saves.skipped,
        "abandoned": report.saves.given_up,
        "moved to another tier": report.saves.moved,
        "damaged": report.saves.damaged,
    }
    return [f"{n:,} {what}" for what, n in kinds.items() if n]


def tiers(report: TrainReport) -> tuple[Block, ...]:
    """What each shared tier holds, where there are several."""
    if len(report.tiers) < 2:
        return ()
    table = columns(
        report.tiers,
        Column("Tier", lambda t: t.uri),
        Column("Newest step", lambda t: t.newest_step, formatting.integer, missing="none"),
        Column("Behind", _behind_text),
        Column("Last failure", lambda t: t.error),
    )
    return (Heading("Checkpoint tiers"), *_other_tier_note(report), table)


def _behind_text(tier: Tier) -> str | None:
    return f"{tier.behind_steps:,} steps, {formatting.duration(tier.behind_seconds)}" if tier.behind_steps else None


def _other_tier_note(report: TrainReport) -> tuple[Block, ...]:
    """A note that saves pass over the first tier, since it failed."""
    first, newest = report.tiers[0].uri, report.checkpoints[-1].tier if report.checkpoints else ""
    if newest == first or newest not in {tier.uri for tier in report.tiers}:
        return ()
    return (
        Text(f"{first} did not take a checkpoint: they go to {newest}, and {first} is tried again from time to time."),
    )


def checkpoints(report: TrainReport) -> tuple[Block, ...]:
    """The newest checkpoints that can be restored, newest first."""
    if not report.checkpoints:
        return ()
    newest_first = report.checkpoints[: -_CHECKPOINTS - 1 : -1]
    table = columns(
        newest_first,
        Column("Step", lambda c: c.step, formatting.integer),
        Column("Generation", lambda c: c.generation),
        Column("Size", lambda c: c.bytes, formatting.size),
        Column("Stall", lambda c: c.seconds, formatting.duration),
        Column("Time to commit", lambda c: c.committed_seconds or None, formatting.duration),
        Column("Verified", lambda c: "yes" if c.verified else "not yet"),
    )
    return (Heading("Checkpoints"), table)


def places(uris: Mapping[str, str]) -> tuple[Block, ...]:
    """Where the model, the checkpoints and the rest are."""
    if not uris:
        return ()
    return (Heading("Where things are"), Table(("What", "Where"), tuple(uris.items())))


def hardware_and_config(report: TrainReport, config: Mapping[str, Any]) -> tuple[Block, ...]:
    """Hardware, versions and the resolved configuration."""
    blocks: list[Block] = []
    if report.hardware:
        rows = (
            ("Device", report.hardware.device),
            ("Threads per rank", str(report.hardware.threads)),
            *((("Number format", report.param_dtype.in_words()),) if report.param_dtype else ()),
            *report.hardware.versions.items(),
        )
        blocks += [Heading("Hardware and versions"), Table(("What", "Which"), rows)]
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    return (*blocks, Heading("Resolved configuration"), Code(text.rstrip()))


def events(report: TrainReport) -> tuple[Block, ...]:
    """What happened, newest first, in time since the first event."""
    if not report.timeline or report.started is None:
        return ()
    start = report.started
    newest = report.timeline[-_TIMELINE_ENTRIES:][::-1]
    entries = tuple(Entry(f"+ {formatting.duration(m.t - start)}", m.text, m.tone) for m in newest)
    left = len(report.timeline) - len(entries)
    more: tuple[Block, ...] = (Text(f"{left:,} earlier ones are in the event log.", quiet=True),) if left else ()
    return (Heading("Events"), Timeline(entries), *more)


def _phase_text(name: str) -> str:
    return name.replace("_", " ")


def _sentences(*texts: str) -> str:
    """The texts that are not empty, each with a capital and a full stop."""
    stripped = filter(None, (text.strip() for text in texts))
    return " ".join(text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".") for text in stripped)
