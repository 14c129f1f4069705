"""The parts of a plan's page: memory, time of a step, checkpoints, and time and cost of the whole."""

from collections.abc import Iterator, Sequence

from convoy.catalog.prices import region_hint
from convoy.display.formatting import count, duration, gib, long_duration, percent, size, whole_usd
from convoy.display.page import Block, Column, Heading, Table, Text, columns
from convoy.planner.cost.cost import FILE_SYSTEM, Cost
from convoy.planner.cost.cost_model import SavePlan
from convoy.planner.cost.market_plans import MarketPlan, MarketPlans, SpotPlan
from convoy.planner.memory.host import HostMemory
from convoy.planner.memory.rank import Memory
from convoy.planner.step.step_time import PART_NAMES, StepPlan

MARKETS = {"on_demand": "on demand", "capacity_block": "capacity block", "spot": "spot", "reserved": "reserved"}

BLOCKS = "A capacity block costs whole days here, paid in advance. AWS sells 1 to 14, or multiples of 7 up to 182."
"""EC2 User Guide, 'Find and purchase Capacity Blocks', and the API's `CapacityBlockOffering` (2026-11-23)."""


def memory_blocks(needed: Memory, host: HostMemory | None, *, on_cpu: bool) -> list[Block]:
    fixed = "staged copies, processes, system" if on_cpu else "CUDA, NCCL, driver"
    rows = (
        *((name, gib(part)) for name, part in needed.parts.items() if part),
        ("at the peak", gib(needed.peak_bytes)),
        *([(fixed, gib(needed.fixed_bytes))] if needed.fixed_bytes else []),
        ("margin", gib(needed.margin_bytes)),
        ("of a rank", gib(needed.nominal_bytes)),
    )
    blocks: list[Block] = [Heading("Memory of a rank"), Table(("Part", "Size"), rows)]
    if host is not None:
        text = (
            f"Host memory of a machine: {gib(host.total_bytes)} of {gib(host.capacity_bytes)}, "
            f"{gib(host.staged_bytes)} of it staged copies of the state{', and all ranks with it' if on_cpu else ''}."
        )
        blocks.append(Text(text, quiet=host.fits))
    return blocks


def step_time_blocks(step: StepPlan) -> list[Block]:
    shares = {name: step.parts[name] / step.seconds for name in PART_NAMES}
    rows = [
        (words, duration(step.parts[name]), percent(shares[name]))
        for name, words in PART_NAMES.items()
        if shares[name] >= 0.0005
    ]
    rows.append(("together", duration(step.seconds), ""))
    if (stall := step.save_stall_seconds) is not None:
        rows.append(("save stall, on average, on top", duration(stall), percent(stall / step.seconds)))
    blocks: list[Block] = [Heading("Time of a step"), Table(("Part", "Time", "Share"), tuple(rows))]
    if step.multiplied_parameters is not None:
        counted = f"N = {count(step.multiplied_parameters)} parameters, without input embeddings, which are looked up"
        blocks.append(Text(f"MFU counts 6 N + 12 L d S operations a token: {counted}.", quiet=True))
    return blocks


def checkpoint_sentences(saves: SavePlan) -> Iterator[str]:
    often = "no interruption is expected"
    if saves.mtbf_seconds is not None:
        often = f"one interruption is expected every {long_duration(saves.mtbf_seconds)}"
    stall, durable = duration(saves.stall_seconds), duration(saves.durable_seconds)
    written = f"Each save writes {size(saves.state_bytes)}"
    yield f"{written}: training waits {stall}, and it is durable after {durable}; {often}."
    if saves.best_interval_seconds is not None:
        yield f"Best: {best_interval_text(saves)}, for {percent(saves.best_overhead)} more time."
        every = "only at the end" if saves.every_steps is None else f"every {saves.every_steps:,} steps"
        yield f"Configured: {every}, for {percent(saves.overhead)} more time{_excess_text(saves)}."


def best_interval_text(saves: SavePlan) -> str:
    assert saves.best_interval_seconds is not None
    return f"every {duration(saves.best_interval_seconds)}, checkpoint.every_steps = {saves.best_every_steps:,}"


def _excess_text(saves: SavePlan) -> str:
    """How much more time and money the configured interval takes than the best one, which is best by time; the money
    includes requests to S3."""
    seconds, dollars = saves.seconds_over_best, round(saves.usd_over_best or 0.0)
    if seconds is None:
        return ""
    if seconds <= -0.5:
        return f": {long_duration(-seconds)} less, but each save would begin before the previous one is durable"
    time = f": {long_duration(seconds)} more than the best" if seconds >= 0.5 else ": as long as the best"
    if dollars < 0:
        return f"{time}, and {whole_usd(-dollars)} less, because fewer requests to S3 are billed"
    return f"{time}, and {whole_usd(dollars)} more" if dollars else time


def cost_blocks(budget: MarketPlans, region: str, proviso: str) -> list[Block]:
    markets, spot = budget.markets, budget.spot
    table = columns(
        markets,
        Column[MarketPlan]("Market", lambda each: MARKETS[each.market]),
        Column[MarketPlan]("Time", lambda each: each.seconds, long_duration),
        Column[MarketPlan]("Cost", lambda each: each.cost and each.cost.usd, whole_usd, missing="not known"),
        Column[MarketPlan]("Range", _usd_range),
        Column[MarketPlan]("Not productive", lambda each: 1 - each.parts["productive"] / each.seconds, percent),
        Column[MarketPlan]("Interruptions", lambda each: each.interruptions, "{:.2g}".format),
        Column[MarketPlan]("Price of a machine", lambda each: each.cost, _price_text),
    )
    blocks: list[Block] = [Heading(f"Until {count(budget.tokens)} tokens{proviso}"), table]
    blocks += [Text(line, quiet=True) for line in _price_notes(markets)]
    blocks += [Text(line) for line in _file_system_sentences(budget)]
    if not any(each.cost for each in markets) and (hint := region_hint(region)):
        blocks.append(Text(f"cluster.region = {region}: {hint}"))
    if spot is not None and spot.savings is not None:
        least, expected, most = map(_savings_text, spot.savings)
        span = f"from {least} (dearest zone) to {most} (cheapest zone)"
        blocks.append(Text(f"Spot costs {expected} than on demand: {span}."))
    if budget.why_no_spot:
        blocks.append(Text(f"Spot: {budget.why_no_spot}.", quiet=True))
    return blocks


def _file_system_sentences(budget: MarketPlans) -> Iterator[str]:
    """What the file system costs in the first market that has a cost, or that its price is not known."""
    plan = next((each for each in budget.markets if each.cost), None)
    if plan is None or plan.cost is None:
        return
    hours = f"{plan.seconds / 3600:,.0f} h"
    for what, usd in plan.cost.services.items():
        if what.startswith(FILE_SYSTEM):
            yield f"Of this, {MARKETS[plan.market]}: {whole_usd(usd)} for {what}, for {hours}."
    yield from (f"Not included: {line}." for line in plan.cost.not_counted if line.startswith(FILE_SYSTEM))


def _savings_text(savings: float) -> str:
    """`22 % more`; what rounds to nothing is `0 % less`, whatever its sign."""
    percentage = round(100 * savings)
    return f"{abs(percentage)} % {'more' if percentage < 0 else 'less'}"


def _usd_range(market: MarketPlan) -> str | None:
    if not isinstance(market, SpotPlan) or market.least_usd is None or market.most_usd is None:
        return None
    return f"{whole_usd(market.least_usd)} to {whole_usd(market.most_usd)}"


def _price_text(cost: Cost) -> str:
    return f"{cost.usd_per_hour:,.2f} USD/h, {cost.price_date}{', old' if cost.stale else ''}"


def _price_notes(markets: Sequence[MarketPlan]) -> Iterator[str]:
    """Sources of the prices, which are old, and which are missing."""
    sources = dict.fromkeys((each.cost.price_date, each.cost.source) for each in markets if each.cost)
    yield from (f"Prices of {day}: {source}." for day, source in sources)
    old = [MARKETS[each.market] for each in markets if each.cost and each.cost.stale]
    if old:
        yield f"Old: {', '.join(old)}: a price more than a year older than the newest that is known may be had no more."
    yield from (f"{MARKETS[each.market]}: {each.why}." for each in markets if each.why)
    if any(each.cost for each in markets if each.market == "capacity_block"):
        yield BLOCKS
