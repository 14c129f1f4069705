"""A plan, as a page: what matters first, then each part."""

from collections.abc import Iterator

from convoy.display import formatting
from convoy.display.formatting import gib
from convoy.display.page import Block, Callout, Heading, Page, Table, Text, Tone, Value, Values
from convoy.planner.config_keys import key_words
from convoy.planner.memory.gpu import Memory
from convoy.planner.memory.host import HostMemory
from convoy.planner.pages import sections
from convoy.planner.pages.sections import MARKETS, usd
from convoy.planner.plan_schema import Change, Plan


def plan_page(plan: Plan) -> Page:
    blocks: list[Block] = [Heading(f"Plan: {_title(plan)}", level=1), *_verdict(plan), _headline(plan)]
    blocks += _advice(plan)
    if plan.memory is not None:
        blocks += sections.memory(plan.memory, plan.host_memory, on_cpu=plan.machines.gpu == "cpu")
    if plan.step is not None:
        blocks += sections.step_time(plan.step)
    if plan.saves is not None:
        blocks += sections.checkpoints(plan.saves)
    if plan.budget is not None:
        blocks += sections.time_and_cost(plan.budget, plan.machines.region, "" if plan.fits else ", were there room")
    blocks += _footnotes(plan)
    return Page("Plan", tuple(blocks))


def _title(plan: Plan) -> str:
    machines = plan.machines
    kind = machines.instance_type or "this host"
    gpus = f"{machines.ranks} {'ranks' if machines.gpu == 'cpu' else machines.gpu}"
    size = "" if plan.parameters is None else f", {formatting.count(plan.parameters)} parameters"
    return f"{plan.model}{size}, on {machines.nodes} × {kind} ({gpus})"


def _verdict(plan: Plan) -> list[Block]:
    refused: list[Block] = [Callout("The train flow refuses this", each, "warning") for each in plan.refused]
    stopped = [Callout("Stopped by its budget", stop_in_words(plan), "warning")] if plan.stop else []
    return [*refused, *_room(plan), *stopped]


def _room(plan: Plan) -> list[Block]:
    needed, host = plan.memory, plan.host_memory
    enough = "" if plan.least_nodes is None else f"; with cluster.nodes={plan.least_nodes} there is room"
    if not plan.fits:
        return [Callout("Does not fit", f"{', and '.join(_lacking(needed, host))}{enough}")]
    if needed is not None and not needed.reliable:
        text = f"{needed.share:.0%} of what a rank has for tensors: above 90 % nobody can tell whether it fits{enough}"
        return [Callout("Not recommended", text, "warning")]
    return []


def _lacking(needed: Memory | None, host: HostMemory | None) -> Iterator[str]:
    if needed is not None and not needed.fits:
        yield f"{gib(-needed.margin_bytes)} more than a rank has for tensors"
    if host is not None and not host.fits:
        more = host.total_bytes - host.capacity_bytes
        yield f"{gib(more)} more of its own memory than a machine has"


def _headline(plan: Plan) -> Values:
    items: list[Value] = []
    if plan.memory is not None:
        tone: Tone = "good" if plan.memory.reliable else "warning" if plan.memory.fits else "bad"
        room = f"{gib(plan.memory.peak_bytes)} of {gib(plan.memory.capacity_bytes)}"
        items.append(Value("Memory", f"{plan.memory.share:.0%}", room, tone))
    if plan.step is not None:
        step = plan.step
        items.append(Value("Step", formatting.duration(step.seconds), _batch(plan)))
        each = f"{step.tokens_per_second_per_gpu:,.0f} tok/s of each rank"
        items.append(Value("Speed", formatting.rate(step.tokens_per_second), each))
        items.append(Value("MFU", f"{step.mfu:.1%}", f"HFU {step.hfu:.1%}"))
    if plan.break_even is not None and plan.batch is not None:
        enough = plan.batch.tokens_per_pass >= plan.break_even.tokens_per_pass
        told = f"{plan.break_even.tokens_per_pass:,.0f} hide what is sent"
        items.append(
            Value("Tokens of a pass", f"{plan.batch.tokens_per_pass:,}", told, "good" if enough else "warning")
        )
    bought = plan.bought
    if bought is not None:
        cost = f"{usd(bought.cost.usd)}, {MARKETS[bought.market]}" if bought.cost else bought.why
        items.append(
            Value("Time" if plan.fits else "Time, were there room", formatting.long_duration(bought.seconds), cost)
        )
    return Values(tuple(items))


def _batch(plan: Plan) -> str:
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
        headers = ("One change at a time", "Run", "Cost", "What it does")
        rows = tuple((key_words(change.keys), *_whole(change), change.text) for change in plan.changes)
        blocks += [Heading("What to change"), Table(headers, rows)]
    return blocks


def _whole(change: Change) -> tuple[str, str]:
    run = "not known" if change.run_seconds is None else formatting.long_duration(change.run_seconds)
    return run, "not known" if change.usd is None else usd(change.usd)


def _footnotes(plan: Plan) -> list[Block]:
    names = {"host_memory": "host memory", "break_even": "break-even"}
    lines = [f"Not planned: {names.get(each.part, each.part)}: {each.why}." for each in plan.missing]
    lines += [f"Assumed: {each}." for each in plan.assumed]
    return [*(Text(line, quiet=True) for line in (*lines, f"Calibration: {plan.calibration}."))]


def stop_in_words(plan: Plan) -> str:
    """Which limit ends the run, and where; empty: none does."""
    stop, budget = plan.stop, plan.budget
    if stop is None:
        return ""
    unit = "h" if stop.key == "budget.max_hours" else "USD"
    whole = "" if budget is None else f" of {formatting.count(budget.tokens)}"
    tokens = f"{formatting.count(stop.tokens)}{whole} tokens"
    return f"{stop.key} = {stop.limit:,g} is reached after about {tokens}, which need {stop.needed:,.0f} {unit}"
