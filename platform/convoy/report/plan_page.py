"""A plan, as a page: what matters first, then each part."""

from collections.abc import Iterator, Sequence

from convoy.catalog.prices import no_such_region
from convoy.report import numbers
from convoy.report.numbers import gib
from convoy.report.page import Block, Callout, Heading, Page, Table, Text, Tone, Value, Values
from convoy.results.plan import (
    Change,
    Plan,
    PlannedBudget,
    PlannedCost,
    PlannedHostMemory,
    PlannedMarket,
    PlannedMemory,
    PlannedSaves,
    PlannedSpot,
    PlannedStep,
    key_words,
)

STEP_PARTS = {
    "matmul": "matrix products",
    "attention": "attention",
    "memory": "work bound by memory",
    "kernels": "gaps between kernels",
    "host": "waiting for the CPU",
    "gather": "exposed all-gather",
    "reduce": "exposed reduce-scatter",
    "packing": "packing messages",
    "tensor": "adding up activations",
    "bubble": "pipeline bubble",
    "optimizer": "optimizer",
    "step": "fixed",
    "straggling": "waiting for the slowest",
}
"""Of a step's time, in the order they are shown."""

MARKETS = {"on_demand": "on demand", "capacity_block": "capacity block", "spot": "spot"}

BLOCKS = "A capacity block costs whole days here, paid in advance. AWS sells 1 to 14, or multiples of 7 up to 182."
"""EC2 User Guide, 'Find and purchase Capacity Blocks', and the API's `CapacityBlockOffering` (2026-11-23)."""


def plan_page(plan: Plan) -> Page:
    blocks: list[Block] = [Heading(f"Plan: {_title(plan)}", level=1), *_verdict(plan), _headline(plan)]
    blocks += _advice(plan)
    if plan.memory is not None:
        blocks += _memory(plan.memory, plan.host_memory, on_cpu=plan.machines.gpu == "cpu")
    if plan.step is not None:
        blocks += _step(plan.step)
    if plan.saves is not None:
        blocks += _saves(plan.saves)
    if plan.budget is not None:
        blocks += _budget(plan.budget, plan.machines.region, "" if plan.fits else ", were there room")
    blocks += _footnotes(plan)
    return Page("Plan", tuple(blocks))


def _title(plan: Plan) -> str:
    machines = plan.machines
    kind = machines.instance_type or "this host"
    gpus = f"{machines.ranks} {'ranks' if machines.gpu == 'cpu' else machines.gpu}"
    size = "" if plan.parameters is None else f", {numbers.count(plan.parameters)} parameters"
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


def _lacking(needed: PlannedMemory | None, host: PlannedHostMemory | None) -> Iterator[str]:
    if needed is not None and not needed.fits:
        yield f"{gib(-needed.margin_bytes)} more than a rank has for tensors"
    if host is not None and not host.fits:
        more = host.states_bytes + host.staged_bytes + host.processes_bytes - host.capacity_bytes
        yield f"{gib(more)} more of its own memory than a machine has"


def _headline(plan: Plan) -> Values:
    items: list[Value] = []
    if plan.memory is not None:
        tone: Tone = "good" if plan.memory.reliable else "warning" if plan.memory.fits else "bad"
        room = f"{gib(plan.memory.peak_bytes)} of {gib(plan.memory.capacity_bytes)}"
        items.append(Value("Memory", f"{plan.memory.share:.0%}", room, tone))
    if plan.step is not None:
        step = plan.step
        items.append(Value("Step", numbers.duration(step.seconds), _batch(plan)))
        each = f"{step.tokens_per_second_per_gpu:,.0f} tok/s of each rank"
        items.append(Value("Speed", numbers.rate(step.tokens_per_second), each))
        items.append(Value("MFU", f"{step.mfu:.1%}", f"HFU {step.hfu:.1%}"))
    if plan.break_even is not None and plan.batch is not None:
        enough = plan.batch.tokens_per_pass >= plan.break_even.tokens_per_pass
        told = f"{plan.break_even.tokens_per_pass:,.0f} hide what is sent"
        items.append(
            Value("Tokens of a pass", f"{plan.batch.tokens_per_pass:,}", told, "good" if enough else "warning")
        )
    bought = plan.bought
    if bought is not None:
        cost = f"{_usd(bought.cost.usd)}, {MARKETS[bought.market]}" if bought.cost else bought.why
        items.append(
            Value("Time" if plan.fits else "Time, were there room", numbers.long_duration(bought.seconds), cost)
        )
    return Values(tuple(items))


def _batch(plan: Plan) -> str:
    batch = plan.batch
    assert batch is not None
    passes = "1 pass" if batch.passes == 1 else f"{batch.passes:,} passes"
    padded = f", {batch.padded_sequences:,} rows of all ranks are padding" if batch.padded_sequences else ""
    return f"{passes} of {numbers.plural(batch.sequences_per_pass, 'sequence')}{padded}"


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
    run = "not known" if change.run_seconds is None else numbers.long_duration(change.run_seconds)
    return run, "not known" if change.usd is None else _usd(change.usd)


def _memory(needed: PlannedMemory, host: PlannedHostMemory | None, *, on_cpu: bool) -> list[Block]:
    fixed = "staged copies, processes, system" if on_cpu else "CUDA, NCCL, driver"
    parts = [(name, gib(size)) for name, size in needed.parts.items() if size]
    rows = (
        *parts,
        ("at the peak", gib(needed.peak_bytes)),
        *([(fixed, gib(needed.fixed_bytes))] if needed.fixed_bytes else []),
        ("margin", gib(needed.margin_bytes)),
        ("of a rank", gib(needed.nominal_bytes)),
    )
    blocks: list[Block] = [Heading("Memory of a rank"), Table(("Part", "Size"), rows)]
    if host is not None:
        taken = host.states_bytes + host.staged_bytes + host.processes_bytes
        text = (
            f"Host memory of a machine: {gib(taken)} of {gib(host.capacity_bytes)}, "
            f"{gib(host.staged_bytes)} of it staged copies of the state{', and all ranks with it' if on_cpu else ''}."
        )
        blocks.append(Text(text, quiet=host.fits))
    return blocks


def _step(step: PlannedStep) -> list[Block]:
    rows = [
        (words, numbers.duration(step.parts[name]), numbers.percent(step.parts[name] / step.seconds))
        for name, words in STEP_PARTS.items()
        if step.parts[name] / step.seconds >= 0.0005
    ]
    rows.append(("together", numbers.duration(step.seconds), ""))
    if step.save_stall_seconds is not None:
        share = numbers.percent(step.save_stall_seconds / step.seconds)
        rows.append(("save stall, on average, on top", numbers.duration(step.save_stall_seconds), share))
    blocks: list[Block] = [Heading("Time of a step"), Table(("Part", "Time", "Share"), tuple(rows))]
    if step.multiplied_parameters is not None:
        counted = f"N = {numbers.count(step.multiplied_parameters)} parameters, without input embeddings"
        blocks.append(
            Text(f"MFU counts 6 N + 12 L d S operations a token: {counted}, which are looked up.", quiet=True)
        )
    return blocks


def _saves(saves: PlannedSaves) -> list[Block]:
    often = "nothing is expected to interrupt it"
    if saves.mtbf_seconds is not None:
        often = f"an interruption each {numbers.long_duration(saves.mtbf_seconds)}"
    stall, durable = numbers.duration(saves.stall_seconds), numbers.duration(saves.durable_seconds)
    lines = [f"{numbers.size(saves.state_bytes)} a save: {stall} of standing still, of use after {durable}; {often}."]
    if saves.best_interval_seconds is not None:
        lines.append(
            f"Best: each {numbers.duration(saves.best_interval_seconds)}, checkpoint.every_steps ="
            f" {saves.best_every_steps:,}, for {numbers.percent(saves.best_overhead)} more time."
        )
        every = "only at the end" if saves.every_steps is None else f"every {saves.every_steps:,} steps"
        lines.append(f"Configured: {every}, for {numbers.percent(saves.overhead)} more time{_over_best(saves)}.")
    return [Heading("Checkpoints"), *(Text(line) for line in lines)]


def _over_best(saves: PlannedSaves) -> str:
    """In time, which the best interval is best by; and in money, of which requests to S3 are a part."""
    seconds, usd = saves.seconds_over_best, round(saves.usd_over_best or 0.0)
    if seconds is None:
        return ""
    if seconds <= -0.5:
        return f": {numbers.long_duration(-seconds)} less, but each save would begin before the last one is of use"
    found = f": {numbers.long_duration(seconds)} more than the best" if seconds >= 0.5 else ": as long as the best"
    if usd < 0:
        return f"{found}, and {_usd(-usd)} less, for fewer requests to S3 are paid"
    return f"{found}, and {_usd(usd)} more" if usd else found


def _budget(budget: PlannedBudget, region: str, proviso: str) -> list[Block]:
    markets: list[PlannedMarket] = [*budget.steady, *([budget.spot] if budget.spot else [])]
    rows = tuple(
        (
            MARKETS.get(each.market, each.market),
            numbers.long_duration(each.seconds),
            _usd(each.cost.usd) if each.cost else "not known",
            _range(each),
            numbers.percent(1 - each.parts["productive"] / each.seconds),
            f"{each.interruptions:.2g}",
            _price(each.cost),
        )
        for each in markets
    )
    headers = ("Market", "Time", "Cost", "Range", "Not productive", "Interruptions", "Price of a machine")
    blocks: list[Block] = [Heading(f"Until {numbers.count(budget.tokens)} tokens{proviso}"), Table(headers, rows)]
    blocks += [Text(line, quiet=True) for line in _prices(markets)]
    if not any(each.cost for each in markets) and (hint := no_such_region(region)):
        blocks.append(Text(f"cluster.region = {region}: {hint}"))
    spot = budget.spot
    if spot is not None and spot.savings is not None:
        blocks.append(Text(_savings(spot.savings, spot.bad_day_savings)))
    elif budget.why_no_spot:
        blocks.append(Text(f"Spot: {budget.why_no_spot}.", quiet=True))
    return blocks


def _savings(found: tuple[float, float, float], bad_day: float | None) -> str:
    """Of spot, as a share of the cost on demand; below 0 more is spent."""
    least, expected, most = (_cheaper(share) for share in found)
    text = f"Spot costs {expected} than on demand: from {least} (dearest zone) to {most} (cheapest zone)."
    if bad_day is None:
        return text
    return f"{text} Were every day a bad one: {_cheaper(bad_day)}, in the dearest zone."


def _cheaper(savings: float) -> str:
    """`22 % more`; what rounds to nothing is `0 % less`, on whichever side of it it is."""
    percent = round(100 * savings)
    return f"{abs(percent)} % {'more' if percent < 0 else 'less'}"


def _range(market: PlannedMarket) -> str:
    if not isinstance(market, PlannedSpot) or market.least_usd is None or market.most_usd is None:
        return ""
    return f"{_usd(market.least_usd)} to {_usd(market.most_usd)}"


def _price(cost: PlannedCost | None) -> str:
    return "" if cost is None else f"{cost.usd_per_hour:,.2f} USD/h, {cost.price_date}{', old' if cost.stale else ''}"


def _prices(markets: Sequence[PlannedMarket]) -> Iterator[str]:
    """Where they are from, which are old, and which are lacking."""
    sources = dict.fromkeys((each.cost.price_date, each.cost.source) for each in markets if each.cost)
    yield from (f"Prices of {day}: {source}." for day, source in sources)
    old = [MARKETS.get(each.market, each.market) for each in markets if each.cost and each.cost.stale]
    if old:
        yield f"Old: {', '.join(old)}: a price more than a year older than the newest that is known may be had no more."
    yield from (f"{MARKETS.get(each.market, each.market)}: {each.why}." for each in markets if each.why)
    if any(each.cost for each in markets if each.market == "capacity_block"):
        yield BLOCKS


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
    whole = "" if budget is None else f" of {numbers.count(budget.tokens)}"
    tokens = f"{numbers.count(stop.tokens)}{whole} tokens"
    return f"{stop.key} = {stop.limit:,g} is reached after about {tokens}, which need {stop.needed:,.0f} {unit}"


def _usd(amount: float) -> str:
    return f"{amount:,.0f} USD"
