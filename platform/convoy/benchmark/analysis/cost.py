"""The cost of tokens at the rates that were measured. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from convoy.benchmark.analysis.report import (
    BaselineCost,
    CaseFigures,
    CostFigures,
    GroupFigures,
    TokenPrice,
    is_valid_training,
)
from convoy.benchmark.results.case import CHANGED, key_of
from convoy.benchmark.results.values import BASELINES
from convoy.catalog.prices import MARKETS, SHIPPED, Market, Price, PriceBook
from convoy.stats.interval import Interval

OFFERED: tuple[Market, ...] = ("on_demand", "reserved", "spot")
"""Markets whose prices the page compares, where they are known."""

TRAINED_TOKENS = (100e9, 500e9, 1e12)
"""Sizes of trainings whose time and cost the page has."""


def cost_figures(groups: Sequence[GroupFigures], prices: PriceBook) -> tuple[CostFigures, ...]:
    """One for each model on each kind and number of machines: its fastest case that computes what it should. None for
    a model that was changed so that it can be cut, which nobody trains."""
    fastest: dict[tuple[object, ...], tuple[GroupFigures, CaseFigures]] = {}
    baselines: dict[tuple[object, ...], BaselineCost] = {}
    for group in groups:
        if group.model.endswith(CHANGED) or group.unit != "tokens":
            continue
        key = (group.model, group.hardware.device, group.hardware.instance_type, group.hardware.nodes, group.region)
        for case in group.cases:
            if not is_valid_training(case):
                continue
            if key not in fastest or case.rate > fastest[key][1].rate:
                fastest[key] = (group, case)
            if case.name in BASELINES and case.tokens_per_second is not None:
                name = key_of(group.suite, group.name, case.name)
                baselines.setdefault(key, BaselineCost(case=name, tokens_per_second=case.tokens_per_second))
    costs = ((key, _case_cost(group, case, prices)) for key, (group, case) in fastest.items())
    return tuple(_with_baseline(cost, baselines.get(key)) for key, cost in costs)


def _with_baseline(cost: CostFigures, baseline: BaselineCost | None) -> CostFigures:
    """With the baseline, unless it is the fastest case itself."""
    own = baseline is None or baseline.case == cost.case
    return cost if own else cost.model_copy(update={"baseline": baseline})


def preferred_offer(cost: CostFigures) -> TokenPrice:
    """In the market that was configured, else on demand, else what there is. Raises IndexError for no offer."""
    by_market = {offer.market: offer for offer in cost.offers}
    return next((by_market[each] for each in (cost.market or "", "on_demand") if each in by_market), cost.offers[0])


def case_offer(group: GroupFigures, case: CaseFigures, prices: PriceBook = SHIPPED) -> float | None:
    """USD for a million tokens or samples, in the preferred market; None: the rate or the price is not known."""
    if case.tokens_per_second is None or not is_valid_training(case):
        return None
    cost = _case_cost(group, case, prices)
    return preferred_offer(cost).usd_per_million_tokens.estimate if cost.offers else None


def _case_cost(group: GroupFigures, case: CaseFigures, prices: PriceBook) -> CostFigures:
    hardware, rate, offers = group.hardware, case.tokens_per_second, []
    assert rate is not None
    if hardware.instance_type is None:
        why = f"{hardware.device} has no price because its instance type is not configured (cluster.instance_type)"
    elif group.region is None:
        why = "the results do not name the region of a price (cluster.region)"
    else:
        offers = [_token_price(price, hardware.nodes, rate) for price in _offered_prices(group, prices)]
        why = "" if offers else f"no price of {hardware.instance_type} in {group.region} is known"
    return CostFigures(
        case=key_of(group.suite, group.name, case.name),
        model=group.model,
        machines=hardware.machines,
        on_gpus=hardware.peak_tflops is not None,
        region=group.region,
        tokens_per_second=rate,
        offers=tuple(offers),
        market=group.market,
        why=why,
    )


def _offered_prices(group: GroupFigures, prices: PriceBook) -> list[Price]:
    """Prices in each offered market, and in the one that the machines were bought in."""
    name, region = str(group.hardware.instance_type), str(group.region)
    book = replace(prices, own=group.prices)
    markets = dict.fromkeys([*OFFERED, *(market for market in MARKETS if market == group.market)])
    return [price for market in markets if (price := book.price(name, market, region)) is not None]


def _token_price(price: Price, nodes: int, rate: Interval) -> TokenPrice:
    usd_per_hour = nodes * price.usd_per_hour
    return TokenPrice(
        market=price.market,
        usd_per_hour=usd_per_hour,
        low_usd_per_hour=nodes * price.low_usd_per_hour,
        high_usd_per_hour=nodes * price.high_usd_per_hour,
        price_date=price.date,
        source=price.source,
        usd_per_million_tokens=rate.inverse(usd_per_hour / 3600 * 1e6),
    )
