"""What a training costs: machines by what they do meanwhile, and its checkpoints. Whole cents that add up."""

import math
from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction

from convoy.catalog.prices import Price
from convoy.catalog.services import ServiceCost, cents
from convoy.planner.cost.spot import Campaign
from convoy.planner.cost.storage import Kept, services

DAY = 86400.0

BOUGHT_AHEAD = "capacity_block"
"""The market that sells whole days."""


@dataclass(frozen=True)
class MachineUsd:
    """Parts of a `Campaign`, in US dollars."""

    productive: Decimal
    stalled: Decimal
    recomputed: Decimal
    draining: Decimal
    waiting: Decimal
    """Of the machines that are there meanwhile: all but one."""
    restarting: Decimal
    unused: Decimal
    """The rest of the last day, where whole days are paid."""

    @property
    def total(self) -> Decimal:
        return sum((getattr(self, part.name) for part in fields(self)), start=Decimal(0))


@dataclass(frozen=True)
class Money:
    """What a campaign costs in one market."""

    price: Price
    usd_per_hour: float
    """Of one machine: the price, or that of its cheapest or dearest zone."""
    machines: MachineUsd
    services: tuple[ServiceCost, ...]
    not_counted: tuple[str, ...]
    """What may cost something too."""

    @property
    def total(self) -> Decimal:
        return self.machines.total + sum((service.usd for service in self.services), start=Decimal(0))


def money(
    campaign: Campaign, nodes: int, price: Price, kept: Kept | None = None, usd_per_hour: float | None = None
) -> Money:
    """Of machines at that price, or at `usd_per_hour` of one of its zones. kept: None: checkpoints are not counted."""
    usd = price.usd_per_hour if usd_per_hour is None else usd_per_hour
    used, left_out = ((), ("checkpoints",)) if kept is None else services(campaign, kept)
    whole_days = price.market == BOUGHT_AHEAD
    return Money(price, usd, _machines(campaign, nodes, usd, whole_days), used, left_out)


def _machines(campaign: Campaign, nodes: int, usd_per_hour: float, whole_days: bool) -> MachineUsd:
    seconds = {part.name: getattr(campaign, part.name) for part in fields(MachineUsd) if part.name != "unused"}
    seconds["unused"] = math.ceil(campaign.seconds / DAY) * DAY - campaign.seconds if whole_days else 0.0
    paid = {name: nodes - 1 if name == "waiting" and not whole_days else nodes for name in seconds}
    per_second = Fraction(str(usd_per_hour)) / 3600
    usd = cents([Fraction(each) * paid[name] * per_second for name, each in seconds.items()])
    return MachineUsd(**dict(zip(seconds, usd, strict=True)))
