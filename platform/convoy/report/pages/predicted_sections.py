"""The part of the training pages that compares the plan with what was measured."""

from collections.abc import Sequence

from convoy.display import formatting
from convoy.display.page import Block, Column, Heading, Text, columns
from convoy.planner.pages.plan import first_warning
from convoy.planner.plan_schema import Plan
from convoy.planner.step.step_time import PART_NAMES, StepPlan
from convoy.report.analysis.prediction_error import Comparison, Unit, comparisons, computing_seconds, plan_mismatch
from convoy.report.train_report import TrainReport

_WHOLE = "The whole job has its start, evaluations and export, which are not planned."


def predictions(report: TrainReport, plan: Plan) -> tuple[Block, ...]:
    """Predictions next to measurements, each with its error."""
    figures, yet = comparisons(plan, report), "not yet" if report.outcome.state == "running" else "not measured"
    blocks: list[Block] = [Heading("Predicted and measured"), Text(_plan_origin(plan, figures), quiet=True)]
    if (why := first_warning(plan)) is not None:
        blocks.append(Text(f"By its plan the run {why}."))
    other = plan_mismatch(plan, report)
    if other:
        blocks.append(Text(f"{other}: only what does not depend on that is compared."))
    if figures:
        blocks.append(
            columns(
                figures,
                Column("", lambda f: f.what),
                Column("Predicted", lambda f: _FORMATS[f.unit](f.predicted)),
                Column("Measured", lambda f: None if f.measured is None else _FORMATS[f.unit](f.measured), missing=yet),
                Column("Error", lambda f: f.pct_error, formatting.signed_percent),
                Column("n", lambda f: None if f.measured is None else f.n, formatting.integer),
            )
        )
    if plan.step is not None and not other:
        blocks.append(Text(_forward_backward_text(plan.step), quiet=True))
    notes = _notes(figures, report, plan)
    return (*blocks, *((Text(" ".join(notes), quiet=True),) if notes else ()))


def _plan_origin(plan: Plan, figures: Sequence[Comparison]) -> str:
    if plan.measured is not None:
        measured = "Planned from this machine's matmul, memory and collectives, measured as the job began"
        origin = f"{measured}; no step's time is in it."
    else:
        origin = "Planned from the configuration and the catalog, before the run began."
    return f"{origin} Error: (predicted - measured) / measured." if figures else origin


_FORMATS: dict[Unit, formatting.Form] = {
    "seconds": formatting.long_duration,
    "tokens/s": formatting.rate,
    "share": formatting.percent,
    "bytes": formatting.size,
    "usd": formatting.usd,
}


def _notes(figures: Sequence[Comparison], report: TrainReport, plan: Plan) -> list[str]:
    whats = {each.what for each in figures}
    notes = []
    if "step" in whats:
        notes.append(f"Medians, of steps without the first {report.warmup_steps} of a generation.")
    for why in dict.fromkeys(each.why_not for each in figures if each.why_not):
        whats_not = ", ".join(each.what for each in figures if each.why_not == why)
        notes.append(f"{whats_not[0].upper()}{whats_not[1:]}: {why}.")
    if "whole job" in whats:
        notes.append(_WHOLE)
    return [*notes, *(f"Not predicted: {lacking}." for lacking in plan.missing_reasons())]


def _forward_backward_text(step: StepPlan) -> str:
    """The planned parts of forward and backward, the longest first."""
    parts = sorted(computing_seconds(step).items(), key=lambda part: -part[1])
    texts = [
        f"{PART_NAMES.get(name, name)} {formatting.duration(seconds)}"
        for name, seconds in parts
        if seconds / step.seconds >= 0.0005
    ]
    return f"Predicted of forward and backward: {', '.join(texts)}."
