"""Section of a benchmark's page on what tokens and whole trainings cost."""

from collections.abc import Sequence

from convoy.benchmark.analysis.cost import TRAINED_TOKENS
from convoy.benchmark.analysis.report import BenchReport, CostFigures, TokenPrice
from convoy.benchmark.pages.headline import market_text
from convoy.display import formatting
from convoy.display.page import Block, Column, Heading, Table, Text, columns

_ASSUMED = (
    "Computed from measured rates and dated prices: at the rate of the fastest case, around the clock, without "
    "interruptions, saves or evaluations. The interval is that of the rate; prices are medians over zones."
)


def cost_section(report: BenchReport) -> tuple[Block, ...]:
    """Per million tokens and for whole trainings. Without a price the page says why there is no cost, and shows the
    time of GPUs only: the years that a CPU would take are of no interest."""
    if not report.costs:
        return ()
    timed = [cost for cost in report.costs if cost.offers or cost.on_gpus]
    blocks: list[Block] = [Heading("Cost and time to train (computed)")]
    if timed:
        blocks.append(Text(_ASSUMED, quiet=True))
    blocks += _missing_cost_texts(report)
    if offers := [(cost, offer) for cost in report.costs for offer in cost.offers]:
        table = columns(
            offers,
            Column("Model", lambda row: row[0].model),
            Column("Machines", lambda row: f"{row[0].machines}, {row[0].region}"),
            Column("Bought", lambda row: market_text(row[1])),
            Column("USD an hour", lambda row: _usd_per_hour(row[1])),
            Column("USD per million tokens", lambda row: formatting.estimate(row[1].usd_per_million_tokens)),
            Column("Price of", lambda row: f"{row[1].price_date}, {row[1].source}"),
        )
        blocks.append(table)
    return (*blocks, _training_table(timed)) if timed else tuple(blocks)


def _missing_cost_texts(report: BenchReport) -> list[Text]:
    """A sentence for all models of the same machines."""
    models: dict[tuple[str, str], list[str]] = {}
    for cost in report.costs:
        if cost.why:
            models.setdefault((cost.machines, cost.why), []).append(cost.model)
    return [Text(f"No cost of {', '.join(names)} on {machines}: {why}.") for (machines, why), names in models.items()]


def _usd_per_hour(offer: TokenPrice) -> str:
    low, high = offer.low_usd_per_hour, offer.high_usd_per_hour
    zones = "" if low == high else f" ({low:,.2f} to {high:,.2f} by zone)"
    return f"{offer.usd_per_hour:,.2f}{zones}"


def _training_table(timed: Sequence[CostFigures]) -> Table:
    """Time and cost to train on many tokens."""
    markets = dict.fromkeys(offer.market for cost in timed for offer in cost.offers)
    return columns(
        [(cost, tokens) for cost in timed for tokens in TRAINED_TOKENS],
        Column("Model", lambda r: r[0].model),
        Column("Machines", lambda r: r[0].machines),
        Column("Case", lambda r: r[0].case),
        Column("Tokens", lambda r: r[1], formatting.count),
        Column("Time", lambda r: r[1] / r[0].tokens_per_second.estimate, formatting.long_duration),
        *(_training_column(name) for name in markets),
    )


def _training_column(market_name: str) -> Column[tuple[CostFigures, float]]:
    def usd(row: tuple[CostFigures, float]) -> float | None:
        cost, tokens = row
        hours = tokens / cost.tokens_per_second.estimate / 3600
        return next((hours * offer.usd_per_hour for offer in cost.offers if offer.market == market_name), None)

    return Column(f"USD {market_name.replace('_', '-')}", usd, "{:,.0f}".format, missing="not known")
