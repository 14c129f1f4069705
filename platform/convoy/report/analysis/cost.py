"""What a job has cost: the plain data that pages, terminal and JSON show. Money is in US dollars, whole cents."""

from datetime import date
from decimal import Decimal

from pydantic import BaseModel, ConfigDict

from convoy.catalog.services import ServiceCost


class CostPart(BaseModel):
    """The base of the models below."""

    model_config = ConfigDict(frozen=True)


class CostByUse(CostPart):
    """Money by what the machines did meanwhile; the parts are exactly the total."""

    productive: Decimal = Decimal(0)
    """Steps and evaluations that the job kept."""
    recomputed: Decimal = Decimal(0)
    """Steps that were lost."""
    measuring: Decimal = Decimal(0)
    """Time after the first step of a generation, in which the machine was measured."""
    stalled: Decimal = Decimal(0)
    """Saves, waits for other nodes, and time between two steps."""
    idle: Decimal = Decimal(0)
    """Time until the first step of a generation was done."""

    @property
    def total(self) -> Decimal:
        return sum((getattr(self, part) for part in CostByUse.model_fields), start=Decimal(0))

    def __add__(self, other: "CostByUse") -> "CostByUse":
        return CostByUse(**{part: getattr(self, part) + getattr(other, part) for part in CostByUse.model_fields})


class MachineCost(CostPart):
    """All node time that was bought at one price."""

    instance: str
    market: str
    region: str
    node_hours: float
    usd_per_hour: float | None
    """The price of one machine; None: not known."""
    price_date: date | None
    source: str
    usd: CostByUse | None
    """None: the price is not known."""


class OnDemandPrice(CostPart):
    """What a machine costs on demand, which the cost is compared with."""

    instance: str
    region: str
    usd_per_hour: float
    price_date: date
    source: str


class Cost(CostPart):
    """The cost of a job so far, by its log: from when its agents began until they ended."""

    machines: tuple[MachineCost, ...]
    services: tuple[ServiceCost, ...]
    lacking: tuple[str, ...]
    """Why there is no total, one line each; empty: there is one."""
    not_counted: tuple[str, ...]
    """What may cost something too, and is not in the log."""
    split: CostByUse | None
    """The cost of all machines."""
    total: Decimal | None
    """Machines and services."""
    tokens: int
    """Tokens that the job was trained on: those of lost steps are not counted twice."""
    usd_per_million_tokens: float | None
    on_demand: Decimal | None
    """What the same tokens would have cost on demand, at least: without the steps that were lost, the starts after the
    first one and the ends against their will; services as they are, apart from file systems. None: a price or its day
    is not known, or nothing else was bought."""
    on_demand_prices: tuple[OnDemandPrice, ...] = ()
    """The prices that `on_demand` was computed with."""
    file_systems: Decimal = Decimal(0)
    """The part of `total` for file systems: they are paid for by the hour, and how many hours the job would have taken
    on demand is not known."""
    saved: float | None
    """The share of `on_demand` that was saved, by the total without file systems; negative: more was spent."""
