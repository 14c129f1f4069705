"""The section of a benchmark's page on stores: one table for all of them, and what their cost is computed from."""

from collections.abc import Iterator, Sequence

from convoy.benchmark.analysis.stores import PICKLED, StoreCost, StoreFigures
from convoy.benchmark.pages.cases import sample_text
from convoy.benchmark.results.values import SampleMedian
from convoy.display import formatting
from convoy.display.page import Block, Column, Heading, Table, Text, columns

_HOW = (
    "One store after the other, by the same ranks. Save and Restore are measured at rest, all ranks at once, as fast "
    "as the store allows, on a state that is padded with random bytes where it is small; restores bypass the host's "
    "cache. Durable is the time from the beginning of a save to its commit while training continues, of the unpadded "
    "state at the pace that spares the steps. Rates are those of all ranks together. Commits are not read back here. "
    "Requests are those of all ranks to the bucket, without DELETE, which is free."
)

_PICKLED = (
    "gzip + pickle is what people write by hand, of the same state: each rank pickles its own shards through gzip at "
    "its default level (9), rank 0 also what all ranks hold alike. Training waits for all of it. Nothing is synced "
    "to the storage, checksummed or committed, and only as many ranks as saved can read it. The random bytes of a "
    "padded state do not become smaller."
)

_ASSUMED = " (cluster.region, as no reply named the bucket's; a server that is not AWS's costs something else)"


def stores_section(stores: Sequence[StoreFigures]) -> tuple[Block, ...]:
    """Empty where no stores were compared."""
    if not stores:
        return ()
    blocks: list[Block] = [Heading("Stores"), Text(_HOW, quiet=True)]
    if any(each.saver == PICKLED for each in stores):
        blocks.append(Text(_PICKLED, quiet=True))
    blocks.append(_table(stores))
    return (*blocks, *(Text(line, quiet=True) for line in _cost_lines(stores)))


def _table(stores: Sequence[StoreFigures]) -> Table:
    several = len({each.model for each in stores}) > 1
    return columns(
        stores,
        Column("Store", lambda s: s.store),
        *([Column[StoreFigures]("Model", lambda s: s.model)] if several else []),
        Column("By", lambda s: s.saver),
        Column("State", lambda s: s.state_bytes, formatting.size),
        Column("Written", lambda s: s.written_bytes, formatting.size),
        Column("Save", lambda s: s.save, sample_text),
        Column("Durable", lambda s: s.durable, sample_text),
        Column("Restore", lambda s: s.restore, sample_text),
        Column("Save, GB/s", lambda s: s.save_rate, _gigabytes),
        Column("Restore, GB/s", lambda s: s.restore_rate, _gigabytes),
        Column("Requests of a save", lambda s: s.save_requests and s.save_requests.total, "{:,.0f}".format),
        Column("Requests of a restore", lambda s: s.restore_requests and s.restore_requests.total, "{:,.0f}".format),
        Column("Cost (computed)", lambda s: s.cost, _cost_text),
        Column("Failed", lambda s: s.reason or None),
        drop_empty=True,
    )


def _gigabytes(rate: SampleMedian) -> str:
    return formatting.significant(rate.median / 1e9)


def _cost_text(cost: StoreCost) -> str:
    saves, month = formatting.significant(1000 * cost.save_usd), formatting.significant(cost.month_usd)
    return f"{saves} USD for 1,000 saves, {month} USD a month"


def _cost_lines(stores: Sequence[StoreFigures]) -> Iterator[str]:
    """What costs are computed from, and why others are not known."""
    priced: dict[tuple[str, bool], list[tuple[str, StoreCost]]] = {}
    for each in stores:
        if each.cost is not None:
            priced.setdefault((each.cost.region, each.cost.region_is_known), []).append((each.store, each.cost))
    for (region, known), named in priced.items():
        prices = named[0][1].prices
        priced_things = ("PUT, COPY, POST and LIST", "other requests", "storage")
        listed = "; ".join(f"{w} {p.usd:g} USD per {p.unit}" for w, p in zip(priced_things, prices, strict=True))
        origin = "; ".join(dict.fromkeys(f"{price.date}, {price.source}" for price in prices))
        names = ", ".join(dict.fromkeys(name for name, _ in named))
        where = f"{region}{'' if known else _ASSUMED}"
        what = "the requests of saves, and a month's storage of what one save wrote"
        yield f"Cost of {names}: {what}, at S3's prices in {where}: {listed} ({origin})."
    reasons: dict[str, dict[str, None]] = {}
    for each in stores:
        if each.why_no_cost:
            reasons.setdefault(each.why_no_cost, {})[each.store] = None
    for reason, unpriced in reasons.items():
        yield f"No cost of {', '.join(unpriced)}: {reason}."
