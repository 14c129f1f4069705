"""Machines to train a model on, as a page: the cheapest and the fastest, how to train there, and the assumptions."""

from collections.abc import Iterator, Sequence

from convoy.catalog.prices import region_hint
from convoy.display.formatting import count, duration, long_duration, rate
from convoy.display.page import Block, Callout, Column, Heading, Page, Table, Text, columns
from convoy.planner.config_keys import Keys, overrides_text
from convoy.planner.pages.sections import BLOCKS, MARKETS
from convoy.planner.search.result import PlanSearch, SearchRow

_ROWS = 8
"""Rows of each table; `--json` has all."""

_BEYOND = 3
"""Rows of each table where nothing is within the limits."""

_OLD = (
    "These prices are more than a year older than the newest that is known, and may be had no more: nothing is left out"
    " because of them. `convoy prices refresh` asks for today's."
)


def search_page(result: PlanSearch) -> Page:
    title = f"{result.model}, {count(result.parameters)} parameters: {count(result.tokens)} tokens"
    blocks: list[Block] = [Heading(title, level=1), Text(_intro_text(result), quiet=True)]
    rows, beyond = [row for row in result.found if row.within], ""
    if not result.found:
        text = "None of these machines can be relied on to train it; why is below"
        blocks.append(Callout("Nothing found", text, "warning"))
    elif not rows:
        blocks.append(Callout("Nothing is within these limits", "The tables have what is nearest to them", "warning"))
        rows, beyond = [row for row in result.found if not row.stale] or list(result.found), " beyond the limits"
    if result.found and not any(row.usd is not None for row in result.found):
        hint = region_hint(result.region)
        text = f"of these machines in {result.region}: `convoy prices refresh` asks for it, --region takes another one"
        blocks.append(Callout("No price is known", f"{text}; {hint}" if hint else text, "warning"))
    cheapest = [row for row in rows if row.usd is not None and (beyond or not row.stale)]
    fastest = sorted(_one_per_machines(rows), key=lambda row: row.hours)
    old = [] if beyond else [row for row in rows if row.stale]
    most = _BEYOND if beyond else _ROWS
    if cheapest:
        blocks += [Heading(f"Cheapest{beyond}"), _table(cheapest[:most])]
    if fastest:
        blocks += [Heading(f"Fastest{beyond}"), _table(fastest[:most])]
    if old:
        blocks += [Heading("By old prices"), _table(old[:most]), Text(_OLD, quiet=True)]
    if rows and not beyond:
        blocks += _how_blocks(result, [*cheapest[:most], *fastest[:most], *old[:most]])
    return Page(title, (*blocks, *(Text(line, quiet=True) for line in _notes(result))))


def _intro_text(result: PlanSearch) -> str:
    batch = result.global_batch * result.sequence_length
    limits = [
        *([] if result.max_usd is None else [f"at most {result.max_usd:,.0f} USD"]),
        *([] if result.max_hours is None else [f"at most {result.max_hours:,.0f} h"]),
    ]
    limited = f"; {' and '.join(limits)}" if limits else ""
    return (
        f"{result.global_batch:,} sequences of {result.sequence_length:,} = {count(batch)} tokens a step; "
        f"prices of {result.region}{limited}. Cost on spot is what is expected at"
        " the upper end of how often machines are reclaimed; between the cheapest zone at the lower end and the"
        " dearest at the upper. * : nothing else is both cheaper and faster."
    )


def _one_per_machines(rows: Sequence[SearchRow]) -> list[SearchRow]:
    """The first market of each kind and number of machines: the others take about as long."""
    first: dict[str, SearchRow] = {}
    for row in rows:
        first.setdefault(_machines_text(row), row)
    return list(first.values())


def _table(rows: Sequence[SearchRow]) -> Table:
    return columns(
        rows,
        Column[SearchRow]("", lambda row: "*" if row.pareto else ""),
        Column[SearchRow]("Machines", _machines_text),
        Column[SearchRow]("Market", lambda row: MARKETS[row.market]),
        Column[SearchRow]("Time", lambda row: 3600 * row.hours, long_duration),
        Column[SearchRow]("Cost, USD", lambda row: row.usd, "{:,.0f}".format, missing="not known"),
        Column[SearchRow]("Between, USD", _usd_range),
        Column[SearchRow]("USD/h of a machine", _price_text),
    )


def _usd_range(row: SearchRow) -> str | None:
    if row.least_usd is None or row.most_usd is None:
        return None
    return f"{count(row.least_usd)} to {count(row.most_usd)}"


def _price_text(row: SearchRow) -> str | None:
    if row.usd_per_hour is None:
        return None
    return f"{row.usd_per_hour:,.2f}, {row.price_date}{', old' if row.stale else ''}"


def _machines_text(row: SearchRow) -> str:
    return f"{row.nodes} × {row.instance_type}"


def _how_blocks(result: PlanSearch, rows: Sequence[SearchRow]) -> list[Block]:
    """One line for each kind and number of machines, in the order of the tables."""
    table = columns(
        _one_per_machines(rows),
        Column[SearchRow]("Machines", _machines_text),
        Column[SearchRow]("Step", lambda row: row.step_seconds, duration),
        Column[SearchRow]("tok/s", lambda row: rate(row.tokens_per_second).removesuffix(" tok/s")),
        Column[SearchRow]("MFU", lambda row: row.mfu, "{:.1%}".format),
        Column[SearchRow]("Memory", lambda row: row.memory_share, "{:.0%}".format),
        Column[SearchRow]("How", lambda row: f"{_strategy_text(row.trained)}, {_save_interval_text(result, row)}"),
    )
    laid = f", on top of {result.laid_on}," if result.laid_on else ","
    which = f"{_machines_text(rows[0])}, {MARKETS[rows[0].market]}"
    first = f"{which}{laid} for --set or --config-value set (all: --json):"
    return [Heading("How"), table, Text(""), Text(first), Text(overrides_text(rows[0].keys))]


def _strategy_text(keys: Keys) -> str:
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


def _save_interval_text(result: PlanSearch, row: SearchRow) -> str:
    """How often these machines save: more often where they are reclaimed."""
    spot, steady = (
        {
            f"{each.trained['checkpoint.every_steps']:,}"
            for each in result.found
            if _machines_text(each) == _machines_text(row) and (each.market == "spot") is on_spot
        }
        for on_spot in (True, False)
    )
    if not spot or not steady or spot == steady:
        return f"saved every {', '.join(spot or steady)} steps"
    return f"saved every {', '.join(steady)} steps, on spot {', '.join(spot)}"


def _notes(result: PlanSearch) -> Iterator[str]:
    within = sum(row.within for row in result.found)
    if within < len(result.found):
        yield f"{len(result.found) - within} of {len(result.found)} are beyond the limits."
    reasons: dict[str, list[str]] = {}
    for each in result.unfit:
        market = f" ({MARKETS[each.market]})" if each.market else ""
        reasons.setdefault(each.why, []).append(f"{each.nodes} × {each.instance_type}{market}")
    yield from (f"{', '.join(names)}: {why}." for why, names in reasons.items())
    yield from (f"Left out, for a run with these would be refused: {why}." for why in result.refused)
    for name in result.no_spot:
        yield f"{name} on spot: how often it is reclaimed is not known, so that there is no forecast."
    sources = dict.fromkeys((row.price_source, row.price_date) for row in result.found if row.price_source)
    yield from (f"Prices of {day}: {source}." for source, day in sources)
    if any(row.market == "capacity_block" and row.usd is not None for row in result.found):
        yield BLOCKS
    yield from (f"Assumed: {each}." for each in result.assumed)
    yield f"Calibration: {result.calibration}."
