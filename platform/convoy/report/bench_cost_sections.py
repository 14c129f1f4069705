"""Parts of a benchmark's page on money: what tokens cost at the measured rates, and what training would take."""

from convoy.report import numbers
from convoy.report.bench_cost import TRAINED_TOKENS, seconds_to_train
from convoy.report.bench_headline import market
from convoy.report.bench_report import BenchReport, CostFigures, Offer
from convoy.report.page import Block, Heading, Table, Text

_ASSUMED = (
    "At the rate of the fastest case, around the clock, without interruptions, saves or evaluations: what spot "
    "machines lose when they are taken away is not in it. The interval is that of the rate; prices are medians over "
    "zones."
)


def costs(report: BenchReport) -> tuple[Block, ...]:
    """Per million tokens and for whole trainings; without a price only the time, and why there is no cost."""
    if not report.costs:
        return ()
    priced = [cost for cost in report.costs if cost.offers]
    blocks: list[Block] = [Heading("Cost and time to train"), Text(_ASSUMED, quiet=True)]
    blocks += [Text(f"No cost of {cost.model} on {cost.machines}: {cost.why}.") for cost in report.costs if cost.why]
    if priced:
        headers = ("Model", "Machines", "Bought", "USD an hour", "USD per million tokens", "Price of")
        rows = tuple(_offer(cost, offer) for cost in priced for offer in cost.offers)
        blocks.append(Table(headers, rows))
    return (*blocks, _training(report))


def _offer(cost: CostFigures, offer: Offer) -> tuple[str, ...]:
    low, high = offer.low_usd_per_hour, offer.high_usd_per_hour
    zones = "" if low == high else f" ({low:,.2f} to {high:,.2f} by zone)"
    return (
        cost.model,
        f"{cost.machines}, {cost.region}",
        market(offer),
        f"{offer.usd_per_hour:,.2f}{zones}",
        numbers.estimate(offer.usd_per_million_tokens),
        f"{offer.price_date}, {offer.source}",
    )


def _training(report: BenchReport) -> Table:
    markets = list(dict.fromkeys(offer.market for cost in report.costs for offer in cost.offers))
    headers = ("Model", "Machines", "Case", "Tokens", "Time", *(f"USD {name.replace('_', '-')}" for name in markets))
    rows = []
    for cost in report.costs:
        for tokens in TRAINED_TOKENS:
            seconds = seconds_to_train(tokens, cost.tokens_per_second)
            usd = {offer.market: f"{seconds / 3600 * offer.usd_per_hour:,.0f}" for offer in cost.offers}
            row = (cost.model, cost.machines, cost.case, numbers.count(tokens), numbers.long_duration(seconds))
            rows.append((*row, *(usd.get(name, "not known") for name in markets)))
    return Table(headers, tuple(rows))
