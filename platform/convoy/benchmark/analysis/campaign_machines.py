"""The machines of a simulated campaign: which they are, how often they are taken away, and what they cost. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pydantic import Field, ValidationError

from convoy.benchmark.analysis.recovery import SUITE
from convoy.benchmark.results.case import Case
from convoy.catalog.interruptions import interruptions
from convoy.catalog.prices import PriceBook
from convoy.config.benchmark import CampaignConfig

EXAMPLE, EXAMPLE_NODES, EXAMPLE_REGION = "p4d.24xlarge", 4, "us-east-1"
"""What is simulated where neither the configuration nor the results name a machine."""


class Setting(CampaignConfig):
    """With the machines filled in."""

    instance_type: str
    region: str
    nodes: int = Field(ge=1)


class PriceRatio(NamedTuple):
    """Spot over on-demand: median over zones, the cheapest zone and the dearest; and where both prices come from."""

    median: float
    low: float
    high: float
    sources: tuple[str, ...]


def asked_for(cases: Sequence[Case]) -> CampaignConfig | None:
    """By the first case of the recovery suite that has it as this version understands it."""
    for case in cases:
        if case.suite == SUITE and isinstance(found := case.config.get("campaign"), dict):
            try:
                return CampaignConfig.model_validate(found)
            except ValidationError:
                continue
    return None


def setting_of(asked: CampaignConfig, saved: Case | None) -> Setting:
    """What is left open is that of the case whose saves were measured; of what has no name, the example's."""
    machine = saved.hardware.instance_type if saved is not None else None
    name = asked.instance_type or machine or EXAMPLE
    nodes = saved.hardware.nodes if saved is not None and name == machine else EXAMPLE_NODES
    filled = {
        "instance_type": name,
        "region": asked.region or (saved and saved.cluster("region")) or EXAMPLE_REGION,
        "nodes": asked.nodes or nodes,
    }
    return Setting.model_validate(asked.model_dump() | filled)


def is_example(setting: Setting, saved: Case | None) -> bool:
    """Whether saves were measured on other machines, or on another number of them."""
    if saved is None:
        return True
    return (saved.hardware.instance_type, saved.hardware.nodes) != (setting.instance_type, setting.nodes)


def taken(setting: Setting) -> tuple[float | None, str]:
    """Share of machines that are taken away within a month, and where that is from."""
    if setting.taken_per_month is not None:
        return setting.taken_per_month, "recovery.campaign.taken_per_month"
    found = interruptions(setting.instance_type)
    if found is None:
        return None, ""
    band = f"{100 * found.low:g} to {100 * found.high:g} %"
    return found.high, f"upper end of {band} a month, {found.date}, {found.source}"


def price_ratio(setting: Setting, saved: Case | None, prices: PriceBook) -> PriceRatio | None:
    """None where either price is not known. saved: whose saves were measured; a price of its own counts, where it is of
    these machines."""
    book = prices if saved is None else replace(prices, own=saved.own_prices)
    spot = book.price(setting.instance_type, "spot", setting.region)
    dear = book.price(setting.instance_type, "on_demand", setting.region)
    if spot is None or dear is None:
        return None
    zones = ""
    if spot.low_usd_per_hour < spot.high_usd_per_hour:
        zones = f"{spot.low_usd_per_hour:,.2f} to {spot.high_usd_per_hour:,.2f} by zone, "
    told = (
        f"spot {spot.usd_per_hour:,.2f} USD an hour, {zones}{spot.date}, {spot.source}",
        f"on-demand {dear.usd_per_hour:,.2f} USD an hour, {dear.date}, {dear.source}",
    )
    usd = dear.usd_per_hour
    return PriceRatio(spot.usd_per_hour / usd, spot.low_usd_per_hour / usd, spot.high_usd_per_hour / usd, told)
