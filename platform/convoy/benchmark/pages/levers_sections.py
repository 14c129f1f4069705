"""Parts of a benchmark's page on what would make it cheaper, and on where its machines are."""

from convoy.benchmark.analysis.cost import as_bought
from convoy.benchmark.analysis.model import BenchReport, CostFigures, Lever, Placement, Topology
from convoy.benchmark.pages.headline import market
from convoy.display import formatting
from convoy.display.page import Block, Heading, Table, Text

_LEVERS = (
    "Computed from measured rates and dated prices, beside on demand in the same region. Ways and places to buy are "
    "alternatives; precision and accumulation are as measured here, and multiply with them. A ratio has the interval "
    "of what was measured; prices are of their day."
)

_PLACES = (
    "A model, and no measurement: collectives in a ring whose slowest link is the pace of all. From computation that "
    "hides all the communication it can, to none at all. Inputs and sources are in docs/explanation/cost.md."
)

LEVELS = {
    "node": "one NVLink",
    "placement_group": "one placement group",
    "zone": "one zone",
    "zones": "two zones",
    "regions": "two regions",
}


def levers(report: BenchReport) -> tuple[Block, ...]:
    """A table for each costed case; none without a price, of which the cost's own section tells."""
    blocks: list[Block] = []
    for cost in report.costs:
        if cost.levers:
            rows = tuple(_lever(lever) for lever in cost.levers)
            blocks.append(Text(f"{cost.model} on {cost.machines}, {cost.region}; case {cost.case}."))
            blocks.append(Table(("What", "Costs", "USD per million tokens", "1 T tokens in", "Assumes"), rows))
    return (Heading("What would make it cheaper (computed)"), Text(_LEVERS, quiet=True), *blocks) if blocks else ()


def topology(report: BenchReport) -> tuple[Block, ...]:
    """A table for each case of several machines that the catalog has."""
    blocks: list[Block] = []
    for cost in report.costs:
        if cost.topology is not None:
            blocks += _places(cost, cost.topology)
    return (Heading("Where the machines are (model)"), Text(_PLACES, quiet=True), *blocks) if blocks else ()


def _lever(lever: Lever) -> tuple[str, ...]:
    if lever.ratio is None or lever.usd_per_million_tokens is None or lever.seconds_per_trillion_tokens is None:
        return (lever.name, "" if lever.why.startswith("in use") else "not known", "", "", lever.why)
    exact = lever.ratio.low == lever.ratio.high
    ratio = f"{lever.ratio.estimate:.2f}×" if exact else formatting.ratio(lever.ratio)
    usd = formatting.estimate(lever.usd_per_million_tokens)
    return (lever.name, ratio, usd, formatting.long_duration(lever.seconds_per_trillion_tokens), lever.assumes)


def _priced(cost: CostFigures) -> str:
    if not cost.offers:
        return ""
    offer = as_bought(cost)
    return f" Machines cost what they do {market(offer)}, as of {offer.price_date}."


def _places(cost: CostFigures, model: Topology) -> list[Block]:
    about = f"{cost.model} on {cost.machines}; case {model.case}, {formatting.plural(model.ranks, 'rank')}."
    if model.why:
        return [Text(f"{about} No model of it: {model.why}.")]
    inputs = (
        f"{about} {formatting.duration(model.compute_seconds)} of computation ({model.compute_told}); over each link "
        f"{formatting.size(model.edge_bytes)} in a step ({model.edge_told}), in {model.collectives:,} collectives."
        f"{_priced(cost)}"
    )
    headers = (
        "Machines in",
        "Link",
        "Latency",
        "Communication",
        "Step",
        "USD per million tokens",
        "Transfer",
        "Assumes",
    )
    return [Text(inputs), Table(headers, tuple(_place(place) for place in model.placements))]


def _place(place: Placement) -> tuple[str, ...]:
    usd, transfer = place.usd_per_million_tokens, place.transfer_usd_per_million_tokens
    return (
        LEVELS[place.level],
        f"{formatting.significant(place.bytes_per_second / 1e9)} GB/s",
        f"{formatting.significant(place.latency_seconds * 1e6)} µs",
        formatting.duration(place.communication_seconds),
        f"{formatting.significant(place.low_seconds)} to {formatting.significant(place.high_seconds)} s",
        f"{formatting.significant(usd[0])} to {formatting.significant(usd[1])}" if usd else "not known",
        "not known" if transfer is None else f"{formatting.significant(transfer)} USD" if transfer else "free",
        place.assumes,
    )
