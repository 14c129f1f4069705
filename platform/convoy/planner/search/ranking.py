"""What a search found, by cost: what is within the limits, what nothing beats, and which limit to loosen."""

from collections.abc import Iterator, Sequence

from convoy.display import formatting
from convoy.planner.search.search_schema import Found


def ranked(rows: Sequence[Found], max_usd: float | None, max_hours: float | None) -> list[Found]:
    """By cost, with the limits and the Pareto set marked: those of which nothing else within the limits is cheaper and
    as fast, or faster and as cheap. What has an old price comes after what has none such, and rules nothing out:
    nobody may be able to pay it any more. What has no price comes last."""
    marked = [row.model_copy(update={"within": _within(row, max_usd, max_hours)}) for row in rows]
    rivals = [row for row in marked if row.within and row.usd is not None and not row.stale]
    return sorted(
        (
            row.model_copy(update={"pareto": row in rivals and not any(_better(other, row) for other in rivals)})
            for row in marked
        ),
        key=lambda row: (row.usd is None, row.stale, row.usd or row.hours),
    )


def loosened(rows: Sequence[Found], max_usd: float | None, max_hours: float | None) -> Iterator[str]:
    """Where nothing is within the limits: how far each would have to go, by prices that are not old where there are
    such. rows: as `ranked` has them."""
    if not rows or any(row.within for row in rows):
        return
    rows = [row for row in rows if not row.stale] or rows
    quick = [row for row in rows if _within(row, None, max_hours) and row.usd is not None]
    cheap = [row for row in rows if _within(row, max_usd, None)]
    if max_usd is not None and quick:
        cheapest = min(quick, key=lambda row: row.usd or 0.0)
        yield f"--max-usd {max_usd:,.0f}: must be at least {cheapest.usd:,.0f}, for {_told(cheapest)}"
    if max_hours is not None and cheap:
        fastest = min(cheap, key=lambda row: row.hours)
        yield f"--max-hours {max_hours:,.0f}: must be at least {fastest.hours:,.1f}, for {_told(fastest)}"
    if not quick and not cheap:
        yield from _ends(rows)


def _ends(rows: Sequence[Found]) -> Iterator[str]:
    """Where loosening one limit is not enough."""
    priced = [row for row in rows if row.usd is not None]
    if priced:
        yield f"the cheapest of all is {_told(min(priced, key=lambda row: row.usd or 0.0))}"
    else:
        yield "no price of these machines is known in this region"
    yield f"the fastest of all is {_told(min(rows, key=lambda row: row.hours))}; more machines (--nodes) may be faster"


def _told(row: Found) -> str:
    cost = "" if row.usd is None else f" and {row.usd:,.0f} USD"
    market = row.market.replace("_", " ")
    return f"{row.nodes} × {row.instance_type}, {market}: {formatting.long_duration(3600 * row.hours)}{cost}"


def _within(row: Found, max_usd: float | None, max_hours: float | None) -> bool:
    cheap = max_usd is None or (row.usd is not None and row.usd <= max_usd)
    return cheap and (max_hours is None or row.hours <= max_hours)


def _better(other: Found, row: Found) -> bool:
    assert other.usd is not None
    assert row.usd is not None
    no_worse = other.usd <= row.usd and other.hours <= row.hours
    return no_worse and (other.usd < row.usd or other.hours < row.hours)
