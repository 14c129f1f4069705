"""Section of a benchmark's page on what tokens and whole trainings cost."""

from collections.abc import Sequence
from typing import NamedTuple

from convoy.benchmark.analysis.cost import OFFERED, TRAINED_TOKENS
from convoy.benchmark.analysis.report import BenchReport, CostFigures, TokenPrice
from convoy.benchmark.pages.headline import market_text
from convoy.display import formatting
from convoy.display.page import Block, Column, Heading, Table, Text, columns
from convoy.stats.interval import Interval

_ASSUMED = (
    "Computed from measured rates and dated prices: at the rate of the fastest case, around the clock, without "
    "interruptions, saves or evaluations. The interval is that of the rate; prices are medians over zones. Reserved "
    "is the hourly price of a machine that is paid for a year, used or not."
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


class _Training(NamedTuple):
    """A case that trains a model on so many tokens."""

    cost: CostFigures
    case: str
    rate: Interval
    tokens: float

    @property
    def hours(self) -> float:
        return self.tokens / self.rate.estimate / 3600


def _training_table(timed: Sequence[CostFigures]) -> Table:
    """Time and cost to train on many tokens, of the baseline where it was measured and of the fastest case. The markets
    that are compared have a column even if their price is not known."""
    bought = dict.fromkeys(offer.market for cost in timed for offer in cost.offers)
    markets = dict.fromkeys([*OFFERED, *bought]) if bought else bought
    rows = [
        _Training(cost, case, rate, tokens)
        for cost in timed
        for tokens in TRAINED_TOKENS
        for case, rate in _cases_of(cost)
    ]
    return columns(
        rows,
        Column("Model", lambda row: row.cost.model),
        Column("Machines", lambda row: row.cost.machines),
        Column("Case", lambda row: row.case),
        Column("Tokens", lambda row: row.tokens, formatting.count),
        Column("Time", lambda row: row.hours * 3600, formatting.long_duration),
        *(_training_column(name) for name in markets),
    )


def _cases_of(cost: CostFigures) -> list[tuple[str, Interval]]:
    baseline = [] if cost.baseline is None else [(cost.baseline.case, cost.baseline.tokens_per_second)]
    return [*baseline, (cost.case, cost.tokens_per_second)]


def _training_column(market_name: str) -> Column[_Training]:
    def usd(row: _Training) -> float | None:
        offers = (offer for offer in row.cost.offers if offer.market == market_name)
        return next((row.hours * offer.usd_per_hour for offer in offers), None)

    return Column(f"USD {market_name.replace('_', '-')}", usd, "{:,.0f}".format, missing="not known")
