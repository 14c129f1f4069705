"""Time and cost until so many tokens are trained: in each market whose price is known."""

from dataclasses import dataclass
from decimal import Decimal

from convoy.catalog.prices import Market
from convoy.planner.cost.campaign import Course
from convoy.planner.cost.cost import Cost
from convoy.planner.cost.failures import Failures
from convoy.planner.cost.spot import Campaign

STEADY: tuple[Market, ...] = ("on_demand", "capacity_block")
"""Markets whose machines nobody takes away."""


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


def planned_budget(course: Course) -> Budget:
    """Raises ValueError where the training would hardly ever end even on machines that nobody takes away; where it
    would hardly ever end on spot alone, that is why there is no plan on spot."""
    instance, failures = course.instance, course.spot
    undisturbed = course.at(course.interval, course.steady)
    steady = tuple(_market_plan(course, market, undisturbed) for market in STEADY)
    if failures is None:
        return Budget(course.tokens, steady, None, f"how often {instance} is reclaimed is not known")
    try:
        return Budget(course.tokens, steady, spot_plan(course, failures, steady[0].cost))
    except ValueError as error:
        return Budget(course.tokens, steady, None, str(error))


def spot_plan(course: Course, failures: Failures, on_demand: Cost | None) -> SpotPlan:
    """on_demand: cost of the same there. Raises ValueError as `expected_campaign`."""
    price = course.price("spot")
    rare, often = (course.at(course.interval, failures, rate) for rate in (failures.rare, failures.often))
    expected = _market_plan(course, "spot", often)
    cheapest = course.cost(rare, price, price.low_usd_per_hour if price else None)
    dearest = course.cost(often, price, price.high_usd_per_hour if price else None)
    savings = None
    if on_demand and expected.cost and cheapest and dearest:
        savings = _saved(dearest, on_demand), _saved(expected.cost, on_demand), _saved(cheapest, on_demand)
    return SpotPlan(
        **vars(expected),
        shortest_seconds=rare.seconds,
        least_usd=cheapest.usd if cheapest else None,
        most_usd=dearest.usd if dearest else None,
        savings=savings,
    )


def _market_plan(course: Course, market: Market, campaign: Campaign) -> MarketPlan:
    price = course.price(market)
    unknown = f"no {market.replace('_', ' ')} price of {course.instance} in {course.config.cluster.region} is known"
    return MarketPlan(
        market=market,
        seconds=campaign.seconds,
        parts=campaign.parts,
        interruptions=campaign.interruptions,
        cost=course.cost(campaign, price),
        why="" if price else unknown,
    )


def _saved(spent: Cost, instead: Cost) -> float:
    """Share of what it would have cost instead; negative: more is spent."""
    return 1 - float(Decimal(str(spent.usd)) / Decimal(str(instead.usd))) if instead.usd else 0.0
