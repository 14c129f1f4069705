"""Machines to train a model on, as a page: the cheapest and the fastest, with the Pareto set marked."""

from collections.abc import Sequence

from convoy.report import numbers
from convoy.report.page import Block, Heading, Page, Table, Text
from convoy.report.plan_page import MARKETS
from convoy.results.plan import Keys
from convoy.results.plan_search import Found, PlanSearch

SHOWN = 10
"""Lines of each table; `--json` has all."""

_HEADERS = ("", "Machines", "Market", "Time", "Cost", "tok/s", "MFU", "Memory", "How")


def search_page(told: PlanSearch) -> Page:
    batch = told.global_batch * told.sequence_length
    title = f"{told.model}, {numbers.count(told.parameters)} parameters: {numbers.count(told.tokens)} tokens"
    about = (
        f"{numbers.count(batch)} tokens a step; prices of {told.region}; with the best interval between saves; on spot"
        " what is expected at the upper end of how often machines are taken away. * : nothing else is both cheaper and"
        " faster."
    )
    within = [row for row in told.found if row.within]
    priced = [row for row in within if row.usd is not None]
    blocks: list[Block] = [Heading(title, level=1), Text(about, quiet=True)]
    if priced:
        blocks += [Heading("Cheapest"), _table(priced)]
    if within:
        blocks += [Heading("Fastest"), _table(sorted(_cheapest_markets(within), key=lambda row: row.hours))]
    else:
        blocks.append(Text("Nothing is within these limits."))
    blocks += _left_out(told, len(within))
    return Page(title, tuple(blocks))


def _cheapest_markets(rows: Sequence[Found]) -> list[Found]:
    """Of the same machines only the first market: the others take about as long."""
    first: dict[tuple[str, int], Found] = {}
    for row in rows:
        first.setdefault((row.instance_type, row.nodes), row)
    return list(first.values())


def _table(rows: Sequence[Found]) -> Table:
    return Table(_HEADERS, tuple(_line(row) for row in rows[:SHOWN]))


def _line(row: Found) -> tuple[str, ...]:
    return (
        "*" if row.pareto else "",
        f"{row.nodes} × {row.instance_type}",
        MARKETS.get(row.market, row.market),
        numbers.long_duration(3600 * row.hours),
        "not known" if row.usd is None else f"{row.usd:,.0f} USD",
        numbers.rate(row.tokens_per_second).removesuffix(" tok/s"),
        f"{row.mfu:.1%}",
        f"{row.memory_share:.0%}",
        _how(row.keys),
    )


def _how(keys: Keys) -> str:
    """In few words, of which each is a key's."""
    strategy = str(keys.get("parallel.strategy", "fsdp"))
    if "parallel.shard_size" in keys:
        strategy += f" of {keys['parallel.shard_size']}"
    words = [
        strategy,
        "ZeRO-2" if keys.get("parallel.reshard_after_forward") is False else "",
        f"tensor {keys['parallel.tensor']}" if "parallel.tensor" in keys else "",
        "per linear" if keys.get("parallel.wrap") == "linear" else "",
        "reduced once a step" if keys.get("parallel.reduce_every_pass") is False else "",
        f"micro batch {keys['train.micro_batch']}",
        f"recompute {keys['train.activation_checkpointing']}",
    ]
    return ", ".join(word for word in words if word)


def _left_out(told: PlanSearch, within: int) -> list[Block]:
    lines = []
    if within < len(told.found):
        lines.append(f"{len(told.found) - within} of {len(told.found)} are beyond the limits.")
    reasons: dict[str, list[str]] = {}
    for each in told.unfit:
        reasons.setdefault(each.why, []).append(f"{each.nodes} × {each.instance_type}")
    lines += [f"{', '.join(names)}: {why}." for why, names in reasons.items()]
    return [Text(line, quiet=True) for line in lines]
