"""Machines to train a model on, as a page: the cheapest and the fastest, how to train there, and what all rests on."""

from collections.abc import Iterator, Sequence

from convoy.catalog.prices import no_such_region
from convoy.display import formatting
from convoy.display.page import Block, Callout, Heading, Page, Table, Text
from convoy.planner.config_keys import Keys, key_words
from convoy.planner.pages.sections import BLOCKS, MARKETS
from convoy.planner.search.result import PlanSearch, SearchRow

SHOWN = 8
"""Lines of each table; `--json` has all."""

NEAREST = 3
"""Of each table of what is beyond the limits, where all is."""

_HEADERS = ("", "Machines", "Market", "Time", "Cost, USD", "Between, USD", "USD/h of a machine")

_OLD = (
    "These prices are more than a year older than the newest that is known, and may be had no more: nothing is left out"
    " because of them. `convoy prices refresh` asks for today's."
)


def search_page(told: PlanSearch) -> Page:
    title = f"{told.model}, {formatting.count(told.parameters)} parameters: {formatting.count(told.tokens)} tokens"
    within = [row for row in told.found if row.within]
    priced = [row for row in within if row.usd is not None and not row.stale]
    old = [row for row in within if row.stale]
    fastest = sorted(_first_markets(within), key=lambda row: row.hours)
    blocks: list[Block] = [Heading(title, level=1), Text(_about(told), quiet=True)]
    if not within:
        blocks += [*_nothing(told), *_nearest(told)]
    if told.found and not any(row.usd is not None for row in told.found):
        hint = no_such_region(told.region)
        text = f"of these machines in {told.region}: `convoy prices refresh` asks for it, --region takes another one"
        text += f"; {hint}" if hint else ""
        blocks.append(Callout("No price is known", text, "warning"))
    if priced:
        blocks += [Heading("Cheapest"), _table(priced)]
    if within:
        blocks += [Heading("Fastest"), _table(fastest)]
    if old:
        blocks += [Heading("By old prices"), _table(old), Text(_OLD, quiet=True)]
    if within:
        shown = [row for rows in (priced, fastest, old) for row in rows[:SHOWN]]
        blocks += _ways(told, shown)
    blocks += [Text(line, quiet=True) for line in _notes(told, len(within))]
    return Page(title, tuple(blocks))


def _about(told: PlanSearch) -> str:
    batch = told.global_batch * told.sequence_length
    limits = [
        *([] if told.max_usd is None else [f"at most {told.max_usd:,.0f} USD"]),
        *([] if told.max_hours is None else [f"at most {told.max_hours:,.0f} h"]),
    ]
    asked = f"; {' and '.join(limits)}" if limits else ""
    return (
        f"{told.global_batch:,} sequences of {told.sequence_length:,} = {formatting.count(batch)} tokens a step; "
        f"prices of {told.region}{asked}. Cost on spot is what is expected at the upper end of how often machines are "
        "taken away; between the cheapest zone at the lower end and the dearest at the upper. * : nothing else is both"
        " cheaper and faster."
    )


def _nothing(told: PlanSearch) -> list[Block]:
    if not told.found:
        return [
            Callout("Nothing found", "None of these machines can be relied on to train it; why is below", "warning")
        ]
    return [Callout("Nothing is within these limits", line, "warning") for line in told.loosen]


def _nearest(told: PlanSearch) -> list[Block]:
    """What is beyond the limits: its cheapest and its fastest, by prices that are not old where there are such."""
    rows = [row for row in told.found if not row.stale] or told.found
    if not rows:
        return []
    priced = [row for row in rows if row.usd is not None]
    fastest = sorted(_first_markets(rows), key=lambda row: row.hours)
    cheapest: list[Block] = [Heading("Cheapest beyond the limits"), _table(priced[:NEAREST])] if priced else []
    return [*cheapest, Heading("Fastest beyond the limits"), _table(fastest[:NEAREST])]


def _first_markets(rows: Sequence[SearchRow]) -> list[SearchRow]:
    """Of the same machines only the first market: the others take about as long."""
    first: dict[tuple[str, int], SearchRow] = {}
    for row in rows:
        first.setdefault((row.instance_type, row.nodes), row)
    return list(first.values())


def _table(rows: Sequence[SearchRow]) -> Table:
    return Table(_HEADERS, tuple(_line(row) for row in rows[:SHOWN]))


def _line(row: SearchRow) -> tuple[str, ...]:
    between = ""
    if row.least_usd is not None and row.most_usd is not None:
        between = f"{formatting.count(row.least_usd)} to {formatting.count(row.most_usd)}"
    return (
        "*" if row.pareto else "",
        _machines(row),
        _market(row),
        formatting.long_duration(3600 * row.hours),
        "not known" if row.usd is None else f"{row.usd:,.0f}",
        between,
        "" if row.usd_per_hour is None else f"{row.usd_per_hour:,.2f}, {row.price_date}{', old' if row.stale else ''}",
    )


def _machines(row: SearchRow) -> str:
    return f"{row.nodes} × {row.instance_type}"


def _market(row: SearchRow) -> str:
    return MARKETS.get(row.market, row.market)


def _ways(told: PlanSearch, rows: Sequence[SearchRow]) -> list[Block]:
    """One line for each kind and number of machines, in the order in which they are shown."""
    each: dict[str, SearchRow] = {}
    for row in rows:
        each.setdefault(_machines(row), row)
    lines = tuple(
        (
            machines,
            formatting.duration(row.step_seconds),
            formatting.rate(row.tokens_per_second).removesuffix(" tok/s"),
            f"{row.mfu:.1%}",
            f"{row.memory_share:.0%}",
            f"{_how(row.trained)}, {_saved([other for other in told.found if _machines(other) == machines])}",
        )
        for machines, row in each.items()
    )
    laid = f", laid on {told.laid_on}," if told.laid_on else ","
    which = f"{_machines(rows[0])}, {_market(rows[0])}"
    first = f"{which}{laid} for --set or --config-value set (--json has those of all):"
    headers = ("Machines", "Step", "tok/s", "MFU", "Memory", "How")
    return [Heading("How"), Table(headers, lines), Text(""), Text(first), Text(key_words(rows[0].keys))]


def _how(keys: Keys) -> str:
    """In few words, of which each is a key's."""
    strategy = str(keys.get("parallel.strategy", "fsdp"))
    if "parallel.shard_size" in keys:
        strategy += f" of {keys['parallel.shard_size']}"
    words = [
        strategy,
        "ZeRO-2" if keys.get("parallel.reshard_after_forward") is False else "",
        f"tensor {keys['parallel.tensor']}" if "parallel.tensor" in keys else "",
        f"pipeline {keys['parallel.pipeline']}" if "parallel.pipeline" in keys else "",
        "per linear" if keys.get("parallel.wrap") == "linear" else "",
        "reduced once a step" if keys.get("parallel.reduce_every_pass") is False else "",
        f"micro batch {keys['train.micro_batch']}",
        f"recompute {keys['train.activation_checkpointing']}",
    ]
    return ", ".join(word for word in words if word)


def _saved(rows: Sequence[SearchRow]) -> str:
    """How often. rows: of the same machines, which are saved more often where they are taken away."""
    spot, steady = (
        {f"{row.trained['checkpoint.every_steps']:,}" for row in rows if (row.market == "spot") is taken}
        for taken in (True, False)
    )
    if not spot or not steady or spot == steady:
        return f"saved every {', '.join(spot or steady)} steps"
    return f"saved every {', '.join(steady)} steps, on spot {', '.join(spot)}"


def _notes(told: PlanSearch, within: int) -> Iterator[str]:
    if within < len(told.found):
        yield f"{len(told.found) - within} of {len(told.found)} are beyond the limits."
    reasons: dict[str, list[str]] = {}
    for each in told.unfit:
        market = f" ({MARKETS.get(each.market, each.market)})" if each.market else ""
        reasons.setdefault(each.why, []).append(f"{each.nodes} × {each.instance_type}{market}")
    yield from (f"{', '.join(names)}: {why}." for why, names in reasons.items())
    yield from (f"Left out, for a run with these would be refused: {why}." for why in told.refused)
    for name in told.no_spot:
        yield f"{name} on spot: how often it is taken away is not known, so that there is no forecast."
    sources = dict.fromkeys((row.price_source, row.price_date) for row in told.found if row.price_source)
    yield from (f"Prices of {day}: {source}." for source, day in sources)
    if any(row.market == "capacity_block" and row.usd is not None for row in told.found):
        yield BLOCKS
    yield from (f"Assumed: {each}." for each in told.assumed)
    yield f"Calibration: {told.calibration}."
