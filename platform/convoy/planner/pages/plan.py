"""A plan, as a page: what matters first, then each part; and its first words in some lines, where a run is started."""

from collections.abc import Mapping

from convoy.display import formatting
from convoy.display.formatting import gib, whole_usd
from convoy.display.page import Block, Callout, Column, Heading, Page, Text, Tone, Value, Values, columns
from convoy.planner.config_keys import overrides_text
from convoy.planner.cost.market_plans import MarketPlan, SpotPlan
from convoy.planner.memory.rank import shortage_text
from convoy.planner.pages import sections
from convoy.planner.pages.sections import MARKETS
from convoy.planner.plan_schema import Change, Plan

_CHANGES = 3
"""Shown where a run is started."""


def plan_page(plan: Plan) -> Page:
    refused = [Callout("The train flow refuses this", each, "warning") for each in plan.refused]
    blocks: list[Block] = [Heading(f"Plan: {_title(plan)}", level=1), *refused, *_warnings(plan)]
    blocks += [Values(tuple(_headline_values(plan))), *_advice(plan)]
    if plan.memory is not None:
        blocks += sections.memory_blocks(plan.memory, plan.host_memory, on_cpu=plan.machines.gpu == "cpu")
    if plan.step is not None:
        blocks += sections.step_time_blocks(plan.step)
    if plan.saves is not None:
        blocks += [Heading("Checkpoints"), *map(Text, sections.checkpoint_sentences(plan.saves))]
    if plan.budget is not None:
        blocks += sections.cost_blocks(plan.budget, plan.machines.region, "" if plan.fits else ", were there room")
    return Page("Plan", (*blocks, *_footnotes(plan)))


def plan_summary(plan: Plan) -> Mapping[str, str]:
    """The first words of the page, by what they are about; a value may have several lines."""
    lines = {
        **{_summary_key(callout.title): callout.text for callout in _warnings(plan)},
        **{_summary_key(value.title): f"{value.value}, {value.subtitle}" for value in _headline_values(plan)},
        "checkpoints": "\n".join(sections.checkpoint_sentences(plan.saves) if plan.saves else ()),
        "limits": "\n".join(f"{limit.what}: {limit.text}" for limit in plan.limits),
        "change": "\n".join(f"{overrides_text(change.keys)}: {change.text}" for change in plan.changes[:_CHANGES]),
        "not planned": "\n".join(plan.missing_reasons()),
    }
    return {what: text for what, text in lines.items() if text}


def plan_in_one_line(plan: Plan) -> str:
    """The least that a person should have read before the machines are paid for."""
    saves = plan.saves
    texts = [
        *(f"{_summary_key(callout.title)}: {callout.text}" for callout in _warnings(plan)),
        *(f"{_summary_key(value.title)}: {value.value}, {value.subtitle}" for value in _headline_values(plan)),
        "" if saves is None or saves.best_every_steps is None else f"saves: best {sections.best_interval_text(saves)}",
        *(f"not planned: {lacking}" for lacking in plan.missing_reasons()),
    ]
    return "; ".join(text for text in texts if text)


def first_warning(plan: Plan) -> str | None:
    """What a run does by its plan that nobody wants: not fit, or end early; None: nothing of the kind is known."""
    return next((f"{_summary_key(callout.title)}: {callout.text}" for callout in _warnings(plan)), None)


def _summary_key(title: str) -> str:
    return title if title.isupper() else f"{title[0].lower()}{title[1:]}"


def _title(plan: Plan) -> str:
    machines = plan.machines
    kind = machines.instance_type or "this host"
    gpus = f"{machines.ranks} {'ranks' if machines.gpu == 'cpu' else machines.gpu}"
    size = "" if plan.parameters is None else f", {formatting.count(plan.parameters)} parameters"
    return f"{plan.model}{size}, on {machines.nodes} × {kind} ({gpus})"


def _warnings(plan: Plan) -> list[Callout]:
    """Titles read as what the run does."""
    callouts = []
    if text := shortage_text(plan.memory, plan.host_memory):
        enough = "" if plan.least_nodes is None else f"; with cluster.nodes={plan.least_nodes} there is room"
        title = "May not fit" if plan.fits else "Does not fit"
        callouts.append(Callout(title, f"{text}{enough}", "warning" if plan.fits else "bad"))
    if plan.stop is not None:
        callouts.append(Callout("Ends before its last step", _budget_stop_text(plan), "warning"))
    return callouts


def _budget_stop_text(plan: Plan) -> str:
    stop, budget = plan.stop, plan.budget
    assert stop is not None
    unit = "h" if stop.key == "budget.max_hours" else "USD"
    whole = "" if budget is None else f" of {formatting.count(budget.tokens)}"
    tokens = f"{formatting.count(stop.tokens)}{whole} tokens"
    return f"{stop.key} = {stop.limit:,g} is reached after about {tokens}, which need {stop.needed:,.0f} {unit}"


def _headline_values(plan: Plan) -> list[Value]:
    memory, step, even, batch = plan.memory, plan.step, plan.break_even, plan.batch
    budget, bought = plan.budget, plan.configured_market
    values: list[Value] = []
    if memory is not None:
        tone: Tone = "good" if memory.reliable else "warning" if memory.fits else "bad"
        share = "under 1%" if memory.share < 0.01 else f"{memory.share:.0%}"
        values.append(Value("Memory", share, f"{gib(memory.peak_bytes)} of {gib(memory.capacity_bytes)}", tone))
    if step is not None:
        each = f"{step.tokens_per_second_per_gpu:,.0f} tok/s of each rank"
        values.append(Value("Step", formatting.duration(step.seconds), _batch_text(plan)))
        values.append(Value("Speed", formatting.rate(step.tokens_per_second), each))
        values.append(Value("MFU", f"{step.mfu:.1%}", f"HFU {step.hfu:.1%}"))
    if even is not None and batch is not None:
        tone = "good" if batch.tokens_per_pass >= even.tokens_per_pass else "warning"
        hidden = f"{even.tokens_per_pass:,.0f} hide what is sent"
        values.append(Value("Tokens of a pass", f"{batch.tokens_per_pass:,}", hidden, tone))
    if bought is not None and budget is not None:
        tokens = f"Time to {formatting.count(budget.tokens)} tokens"
        title = tokens if plan.fits else f"{tokens}, were there room"
        values.append(Value(title, formatting.long_duration(bought.seconds), _cost_text(bought)))
    return values


def _cost_text(market: MarketPlan) -> str:
    if market.cost is None:
        return market.why
    between = ""
    if isinstance(market, SpotPlan) and market.least_usd is not None and market.most_usd is not None:
        between = f" ({market.least_usd:,.0f} to {market.most_usd:,.0f})"
    return f"{whole_usd(market.cost.usd)}{between}, {MARKETS[market.market]}, price of {market.cost.price_date}"


def _batch_text(plan: Plan) -> str:
    batch = plan.batch
    assert batch is not None
    passes = "1 pass" if batch.passes == 1 else f"{batch.passes:,} passes"
    padded = f", {batch.padded_sequences:,} rows of all ranks are padding" if batch.padded_sequences else ""
    return f"{passes} of {formatting.plural(batch.sequences_per_pass, 'sequence')}{padded}"


def _advice(plan: Plan) -> list[Block]:
    blocks: list[Block] = []
    if plan.limits:
        blocks += [Heading("What limits it"), *(Text(f"{limit.what}: {limit.text}") for limit in plan.limits)]
    if plan.changes:
        table = columns(
            plan.changes,
            Column[Change]("One change at a time", lambda change: overrides_text(change.keys)),
            Column[Change]("Run", lambda change: change.run_seconds, formatting.long_duration, missing="not known"),
            Column[Change]("Cost", lambda change: change.usd, whole_usd, missing="not known"),
            Column[Change]("What it does", lambda change: change.text),
        )
        blocks += [Heading("What to change"), table]
    return blocks


def _footnotes(plan: Plan) -> list[Text]:
    names = {"host_memory": "host memory", "break_even": "break-even"}
    missing = (f"Not planned: {names.get(each.part, each.part)}: {each.why}." for each in plan.missing)
    assumed = (f"Assumed: {each}." for each in plan.assumed)
    return [Text(line, quiet=True) for line in (*missing, *assumed, f"Calibration: {plan.calibration}.")]
