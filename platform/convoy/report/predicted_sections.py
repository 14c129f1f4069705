"""The part of the training pages that has the plan beside what was measured."""

from convoy.report import numbers, plan_page
from convoy.report.page import Block, Heading, Table, Text
from convoy.report.predicted import Compared, compared, computing_parts, other_ranks, step_parts
from convoy.report.train_report import TrainReport
from convoy.results.plan import Part, Plan

_HEADERS = ("", "Predicted", "Measured", "Error", "Measurements")

_PARTS: tuple[Part, ...] = ("memory", "step", "saves", "budget")
"""Of a plan, that have measurements."""

_WHOLE = "The whole job has its start, evaluations and export, which are not planned."


def predicted(report: TrainReport, plan: Plan | None) -> tuple[Block, ...]:
    """Predictions beside measurements, each with its error; nothing where there is no plan."""
    if plan is None:
        return ()
    figures = compared(plan, report)
    blocks: list[Block] = [Heading("Predicted and measured"), Text(_from(plan), quiet=True)]
    others = other_ranks(plan, report)
    if others is not None:
        told = f"Planned for {numbers.plural(plan.machines.ranks, 'rank')}, and {others:,} trained"
        blocks.append(Text(f"{told}: steps and saves are not compared."))
    if figures:
        blocks.append(Table(_HEADERS, tuple(_row(each) for each in figures)))
    if plan.step is not None and others is None:
        parts = tuple(_row(each) for each in step_parts(plan.step, report.step_time))
        blocks += [Text("Of a step", quiet=True), Table(_HEADERS, parts), Text(_computing(plan), quiet=True)]
    notes = _notes(figures, report, plan)
    return (*blocks, *((Text(" ".join(notes), quiet=True),) if notes else ()))


def _from(plan: Plan) -> str:
    if plan.measured is not None:
        return "Planned from this machine's measured matmul, memory and collectives, before the first step."
    return "Planned from the configuration and the catalog, before the run began."


def _row(each: Compared) -> tuple[str, ...]:
    error = each.pct_error
    measured = "not yet" if each.measured is None else _form(each.unit, each.measured)
    return (
        each.what,
        _form(each.unit, each.predicted),
        measured,
        "" if error is None else f"{error:+.1f} %",
        "" if each.measured is None or each.n is None else f"{each.n:,}",
    )


def _form(unit: str, value: float) -> str:
    match unit:
        case "seconds":
            return numbers.long_duration(value)
        case "tokens/s":
            return numbers.rate(value)
        case "share":
            return numbers.percent(value)
        case "bytes":
            return numbers.size(value)
    return f"{value:,.2f} USD"


def _computing(plan: Plan) -> str:
    """What forward and backward are planned to be made of, the longest first."""
    assert plan.step is not None
    parts = sorted(computing_parts(plan.step).items(), key=lambda part: -part[1])
    shown = [(name, each) for name, each in parts if each / plan.step.seconds >= 0.0005]
    told = (f"{plan_page.STEP_PARTS.get(name, name)} {numbers.duration(each)}" for name, each in shown)
    return f"Predicted of forward and backward: {', '.join(told)}."


def _notes(figures: tuple[Compared, ...], report: TrainReport, plan: Plan) -> list[str]:
    notes = ["The error is that of the prediction: (predicted - measured) / measured."] if figures else []
    if any(each.n is not None and each.what != "memory peak of a rank" for each in figures):
        notes.append(f"Measured are medians; the first {report.warmup_steps} steps of a generation are left out.")
    notes += [f"{each.what.capitalize()}: {each.why_not}." for each in figures if each.why_not]
    if any(each.what == "whole job" for each in figures):
        notes.append(_WHOLE)
    lacking = plan.not_planned(_PARTS)
    notes += [f"Not predicted: {names}: {why}." for why, names in lacking.items()]
    return notes
