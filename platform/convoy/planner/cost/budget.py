"""Time and cost until so many tokens are trained: in each market whose price is known."""

from dataclasses import dataclass

from convoy.catalog.prices import SHIPPED, Market, Price, PriceBook
from convoy.planner.cost.cost import Money, money
from convoy.planner.cost.failures import Failures, Restart, Saving
from convoy.planner.cost.spot import Campaign, Campaigns, campaigns, expected_campaign
from convoy.planner.cost.storage import Kept

STEADY: tuple[Market, ...] = ("on_demand", "capacity_block")
"""Whose machines nobody takes away."""


@dataclass(frozen=True)
class Rented:
    """Machines of one type, and what they cost where."""

    instance: str
    nodes: int
    region: str
    prices: PriceBook = SHIPPED

    def price(self, market: Market) -> Price | None:
        return self.prices.price(self.instance, market, self.region)


@dataclass(frozen=True)
class Offer:
    """A training in one market."""

    market: Market
    campaign: Campaign
    money: Money | None
    why: str = ""
    """Why there is no cost."""


@dataclass(frozen=True)
class SpotOffer:
    """A training on spot: expected where machines are taken away as often as the band's upper end has it, and between
    which bounds."""

    campaigns: Campaigns
    expected: Offer
    cheapest: Money | None
    """In the cheapest zone, at the band's lower end."""
    dearest: Money | None
    """In the dearest zone, at its upper end."""
    bad_day: Money | None
    """In the dearest zone, were every day a bad one."""
    savings: tuple[float, float, float] | None
    """Of the cost on demand, at least, as expected and at most; negative: more is spent. None: a price is not known."""
    bad_day_savings: float | None


@dataclass(frozen=True)
class Budget:
    """All that is known of the time and the money for some tokens."""

    tokens: float
    interval_seconds: float
    """Of work between two saves."""
    steady: tuple[Offer, ...]
    """On machines that nobody takes away."""
    spot: SpotOffer | None
    why_no_spot: str = ""


def budget(
    tokens: float,
    tokens_per_second: float,
    rented: Rented,
    interval: float,
    steady: Failures,
    spot: Failures | None,
    saving: Saving,
    restart: Restart,
    kept: Kept | None = None,
) -> Budget:
    """tokens_per_second: without saves and interruptions. interval: in every market, as `best_save_interval` or the
    configuration has it. steady: failures of machines that nobody takes away. spot: of those on spot; None: how often
    they are taken away is not known, and then there is no forecast. Raises as `expected_campaign` for machines that
    nobody takes away; where the training would hardly ever end on spot alone, that is why there is none on spot."""
    work = tokens / tokens_per_second
    undisturbed = expected_campaign(work, steady.often, interval, steady, saving, restart)
    offers = tuple(_offer(rented, market, undisturbed, kept) for market in STEADY)
    if spot is None:
        return Budget(tokens, interval, offers, None, f"how often {rented.instance} is taken away is not known")
    try:
        found = campaigns(work, interval, spot, saving, restart)
    except ValueError as error:
        return Budget(tokens, interval, offers, None, str(error))
    return Budget(tokens, interval, offers, _spot(rented, found, offers[0].money, kept))


def usd_per_million_tokens(found: Money, tokens: float) -> float:
    return float(found.total) / tokens * 1e6


def _offer(rented: Rented, market: Market, campaign: Campaign, kept: Kept | None) -> Offer:
    price = rented.price(market)
    if price is None:
        why = f"no {market.replace('_', ' ')} price of {rented.instance} in {rented.region} is known"
        return Offer(market, campaign, None, why)
    return Offer(market, campaign, money(campaign, rented.nodes, price, kept))


def _spot(rented: Rented, found: Campaigns, on_demand: Money | None, kept: Kept | None) -> SpotOffer:
    expected, price = _offer(rented, "spot", found.often, kept), rented.price("spot")
    if price is None or expected.money is None:
        return SpotOffer(found, expected, None, None, None, None, None)
    cheapest = money(found.rare, rented.nodes, price, kept, price.low_usd_per_hour)
    dearest = money(found.often, rented.nodes, price, kept, price.high_usd_per_hour)
    bad = None
    if found.bad_day is not None:
        bad = money(found.bad_day, rented.nodes, price, kept, price.high_usd_per_hour)
    savings, in_bad_days = None, None
    if on_demand is not None:
        savings = (saved(dearest, on_demand), saved(expected.money, on_demand), saved(cheapest, on_demand))
        in_bad_days = saved(bad, on_demand) if bad else None
    return SpotOffer(found, expected, cheapest, dearest, bad, savings, in_bad_days)


def saved(spent: Money, instead: Money) -> float:
    """Share of what it would have cost instead; negative: more is spent."""
    return 1 - float(spent.total / instead.total) if instead.total else 0.0
