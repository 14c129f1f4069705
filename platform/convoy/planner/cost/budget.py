"""Time and cost until so many tokens are trained: in each market whose price is known."""

from dataclasses import dataclass
from decimal import Decimal

from convoy.catalog.prices import SHIPPED, Market, Price, PriceBook
from convoy.planner.cost.cost import Cost, StoredCheckpoints, cost
from convoy.planner.cost.failures import Failures, Restart, Saving
from convoy.planner.cost.spot import Campaign, expected_campaign

STEADY: tuple[Market, ...] = ("on_demand", "capacity_block")
"""Markets whose machines nobody takes away."""


@dataclass(frozen=True)
class Rented:
    """Machines of one type, and what they cost where."""

    instance: str
    nodes: int
    region: str
    prices: PriceBook = SHIPPED

    def price(self, market: Market) -> Price | None:
        return self.prices.price(self.instance, market, self.region)


@dataclass(frozen=True, kw_only=True)
class MarketPlan:
    """Until the last token in one market; on spot at the upper end of the interruption rates."""

    market: str
    seconds: float
    parts: dict[str, float]
    """Seconds by what they are; together `seconds`."""
    interruptions: float
    """Expected number."""
    cost: Cost | None
    why: str = ""
    """Why there is no cost."""


@dataclass(frozen=True, kw_only=True)
class SpotPlan(MarketPlan):
    """A market plan with its range."""

    shortest_seconds: float
    """At the lower end of the interruption rates."""
    least_usd: float | None
    """In the cheapest zone, at the lower end."""
    most_usd: float | None
    """In the dearest zone, at the upper end."""
    savings: tuple[float, float, float] | None
    """Share of the cost on demand: at least, expected, at most; below 0: more is spent. Null: a price is not known."""


@dataclass(frozen=True)
class Budget:
    """Time and cost until so many tokens are trained."""

    tokens: float
    steady: tuple[MarketPlan, ...]
    """On demand, and in a capacity block."""
    spot: SpotPlan | None
    why_no_spot: str = ""

    @property
    def markets(self) -> tuple[MarketPlan, ...]:
        return (*self.steady, *([self.spot] if self.spot else []))


def budget(
    tokens: float,
    tokens_per_second: float,
    rented: Rented,
    interval: float,
    steady: Failures,
    spot: Failures | None,
    saving: Saving,
    restart: Restart,
    stored: StoredCheckpoints | None = None,
) -> Budget:
    """tokens_per_second: without saves and interruptions. interval: in every market. steady: failures of machines that
    nobody takes away. spot: of those on spot; None: their interruption rate is not known, so there is no forecast.
    Raises ValueError as `expected_campaign` for machines that nobody takes away; where the training would hardly ever
    end on spot alone, that is why there is no plan on spot."""
    work = tokens / tokens_per_second
    undisturbed = expected_campaign(work, steady.often, interval, steady, saving, restart)
    plans = tuple(_plan(rented, market, undisturbed, stored) for market in STEADY)
    if spot is None:
        return Budget(tokens, plans, None, f"how often {rented.instance} is taken away is not known")
    try:
        return Budget(tokens, plans, _spot(rented, work, interval, spot, saving, restart, stored, plans[0].cost))
    except ValueError as error:
        return Budget(tokens, plans, None, str(error))


def _plan(rented: Rented, market: Market, campaign: Campaign, stored: StoredCheckpoints | None) -> MarketPlan:
    price, why = rented.price(market), ""
    if price is None:
        why = f"no {market.replace('_', ' ')} price of {rented.instance} in {rented.region} is known"
    return MarketPlan(
        market=market,
        seconds=campaign.seconds,
        parts=campaign.parts,
        interruptions=campaign.interruptions,
        cost=None if price is None else _cost(rented, campaign, price, stored),
        why=why,
    )


def _cost(
    rented: Rented, campaign: Campaign, price: Price, stored: StoredCheckpoints | None, zone: float | None = None
) -> Cost:
    return cost(campaign, rented.nodes, price, stored, zone, stale=rented.prices.is_stale(price.date))


def _spot(
    rented: Rented,
    work: float,
    interval: float,
    failures: Failures,
    saving: Saving,
    restart: Restart,
    stored: StoredCheckpoints | None,
    on_demand: Cost | None,
) -> SpotPlan:
    rare, often = (
        expected_campaign(work, rate, interval, failures, saving, restart) for rate in (failures.rare, failures.often)
    )
    expected, price = _plan(rented, "spot", often, stored), rented.price("spot")
    cheapest = dearest = savings = None
    if price is not None:
        cheapest = _cost(rented, rare, price, stored, price.low_usd_per_hour)
        dearest = _cost(rented, often, price, stored, price.high_usd_per_hour)
    if on_demand and cheapest and dearest and expected.cost:
        savings = _saved(dearest, on_demand), _saved(expected.cost, on_demand), _saved(cheapest, on_demand)
    return SpotPlan(
        **vars(expected),
        shortest_seconds=rare.seconds,
        least_usd=cheapest.usd if cheapest else None,
        most_usd=dearest.usd if dearest else None,
        savings=savings,
    )


def _saved(spent: Cost, instead: Cost) -> float:
    """Share of what it would have cost instead; negative: more is spent."""
    return 1 - float(Decimal(str(spent.usd)) / Decimal(str(instead.usd))) if instead.usd else 0.0
