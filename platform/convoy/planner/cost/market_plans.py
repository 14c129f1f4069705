"""Time and cost until so many tokens are trained: in each market whose price is known."""

from dataclasses import dataclass
from decimal import Decimal

from convoy.catalog.prices import Market
from convoy.planner.cost.campaign import Campaign
from convoy.planner.cost.cost import Cost
from convoy.planner.cost.cost_model import CostModel
from convoy.planner.cost.failures import FailureModel

STEADY: tuple[Market, ...] = ("on_demand", "capacity_block")
"""Markets whose machines nobody takes away and which oblige nobody for a year: every plan has them."""


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
class MarketPlans:
    """Time and cost until so many tokens are trained."""

    tokens: float
    steady: tuple[MarketPlan, ...]
    """On demand, in a capacity block, and reserved where that is configured."""
    spot: SpotPlan | None
    why_no_spot: str = ""

    @property
    def markets(self) -> tuple[MarketPlan, ...]:
        return (*self.steady, *([self.spot] if self.spot else []))


def plan_markets(costs: CostModel) -> MarketPlans:
    """Raises ValueError where the training would hardly ever end even on machines that nobody takes away; where it
    would hardly ever end on spot alone, that is why there is no plan on spot."""
    instance, failures = costs.instance, costs.spot_failures
    undisturbed = costs.expected_campaign(costs.save_interval_seconds, costs.hardware_failures)
    bought = costs.config.cluster.market
    configured = () if bought in (*STEADY, "spot") else (bought,)
    steady = tuple(_market_plan(costs, market, undisturbed) for market in (*STEADY, *configured))
    if failures is None:
        return MarketPlans(costs.tokens, steady, None, f"how often {instance} is reclaimed is not known")
    try:
        return MarketPlans(costs.tokens, steady, spot_plan(costs, failures, steady[0].cost))
    except ValueError as error:
        return MarketPlans(costs.tokens, steady, None, str(error))


def spot_plan(costs: CostModel, failures: FailureModel, on_demand: Cost | None) -> SpotPlan:
    """on_demand: cost of the same there. Raises ValueError as `expected_campaign`."""
    price = costs.price("spot")
    rare = costs.expected_campaign(costs.save_interval_seconds, failures, failures.lowest_rate)
    often = costs.expected_campaign(costs.save_interval_seconds, failures, failures.highest_rate)
    expected = _market_plan(costs, "spot", often)
    cheapest = costs.cost(rare, price, price.low_usd_per_hour if price else None)
    dearest = costs.cost(often, price, price.high_usd_per_hour if price else None)
    savings = None
    if on_demand and expected.cost and cheapest and dearest:
        low, mean, high = (_savings_share(each, on_demand) for each in (dearest, expected.cost, cheapest))
        savings = low, mean, high
    return SpotPlan(
        **vars(expected),
        shortest_seconds=rare.seconds,
        least_usd=cheapest.usd if cheapest else None,
        most_usd=dearest.usd if dearest else None,
        savings=savings,
    )


def _market_plan(costs: CostModel, market: Market, campaign: Campaign) -> MarketPlan:
    price = costs.price(market)
    unknown = f"no {market.replace('_', ' ')} price of {costs.instance} in {costs.config.cluster.region} is known"
    return MarketPlan(
        market=market,
        seconds=campaign.seconds,
        parts=campaign.part_seconds,
        interruptions=campaign.interruptions,
        cost=costs.cost(campaign, price),
        why="" if price else unknown,
    )


def _savings_share(cost: Cost, alternative: Cost) -> float:
    """Share of what it would have cost instead; negative: more is spent."""
    return 1 - float(Decimal(str(cost.usd)) / Decimal(str(alternative.usd))) if alternative.usd else 0.0
