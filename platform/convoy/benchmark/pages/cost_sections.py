"""Parts of a benchmark's page on money: what tokens cost at the measured rates, and what training would take."""

from collections.abc import Iterator, Sequence

from convoy.benchmark.analysis.cost import TRAINED_TOKENS, seconds_to_train
from convoy.benchmark.analysis.model import BenchReport, CostFigures, Offer
from convoy.benchmark.pages.headline import market
from convoy.display import formatting
from convoy.display.page import Block, Heading, Table, Text

_ASSUMED = (
    "Computed from measured rates and dated prices: at the rate of the fastest case, around the clock, without "
    "interruptions, saves or evaluations. What spot machines lose when they are taken away is only in a row with the "
    "expected overhead. The interval is that of the rate; prices are medians over zones."
)


def costs(report: BenchReport) -> tuple[Block, ...]:
    """Per million tokens and for whole trainings; without a price why there is no cost, and of GPUs only the time."""
    if not report.costs:
        return ()
    priced = [cost for cost in report.costs if cost.offers]
    timed = [cost for cost in report.costs if cost.offers or cost.on_gpus]  # years on a CPU tell nobody anything
    blocks: list[Block] = [Heading("Cost and time to train (computed)")]
    if timed:
        blocks.append(Text(_ASSUMED, quiet=True))
    blocks += _unpriced(report)
    if priced:
        headers = ("Model", "Machines", "Bought", "USD an hour", "USD per million tokens", "Price of")
        rows = tuple(row for cost in priced for offer in cost.offers for row in _offers(cost, offer))
        blocks.append(Table(headers, rows))
    return (*blocks, _training(timed)) if timed else tuple(blocks)


def _unpriced(report: BenchReport) -> list[Text]:
    """A sentence for all models of the same machines."""
    models: dict[tuple[str, str], list[str]] = {}
    for cost in report.costs:
        if cost.why:
            models.setdefault((cost.machines, cost.why), []).append(cost.model)
    return [Text(f"No cost of {', '.join(told)} on {name}: {why}.") for (name, why), told in models.items()]


def _offers(cost: CostFigures, offer: Offer) -> Iterator[tuple[str, ...]]:
    """Without interruptions, and with those that are expected."""
    yield _offer(cost, offer)
    model, machines, bought, usd, _, source = _offer(cost, offer)
    for more, name in (
        (offer.simulated_usd_per_million_tokens, "with the expected overhead, none announced"),
        (offer.bad_day_usd_per_million_tokens, "with that of bad days, none announced"),
    ):
        if more is not None:
            yield model, machines, f"{bought} {name}", usd, f"{formatting.estimate(more)}, expected", source


def _offer(cost: CostFigures, offer: Offer) -> tuple[str, ...]:
    low, high = offer.low_usd_per_hour, offer.high_usd_per_hour
    zones = "" if low == high else f" ({low:,.2f} to {high:,.2f} by zone)"
    return (
        cost.model,
        f"{cost.machines}, {cost.region}",
        market(offer),
        f"{offer.usd_per_hour:,.2f}{zones}",
        formatting.estimate(offer.usd_per_million_tokens),
        f"{offer.price_date}, {offer.source}",
    )


def _training(timed: Sequence[CostFigures]) -> Table:
    markets = list(dict.fromkeys(offer.market for cost in timed for offer in cost.offers))
    headers = ("Model", "Machines", "Case", "Tokens", "Time", *(f"USD {name.replace('_', '-')}" for name in markets))
    rows = []
    for cost in timed:
        for tokens in TRAINED_TOKENS:
            seconds = seconds_to_train(tokens, cost.tokens_per_second)
            usd = {offer.market: f"{seconds / 3600 * offer.usd_per_hour:,.0f}" for offer in cost.offers}
            row = (cost.model, cost.machines, cost.case, formatting.count(tokens), formatting.long_duration(seconds))
            rows.append((*row, *(usd.get(name, "not known") for name in markets)))
    return Table(headers, tuple(rows))
