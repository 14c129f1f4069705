"""Prices of storage, requests and what runs all the time, each with its date and source; and sums in whole cents."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from convoy.catalog import load_table
from convoy.config.base import FrozenConfig

Service = Literal["s3_storage", "s3_puts", "s3_gets", "nat_gateway", "public_ipv4", "eks_cluster"]
"""s3_puts: PUT, COPY, POST and LIST; s3_gets: all others but DELETE, which is free. nat_gateway: without its traffic.
eks_cluster: its control plane, for versions in standard support."""


class ServicePrice(FrozenConfig):
    """US dollars for one unit, the first tier where there are several."""

    name: Service
    region: str
    unit: str
    """What one is, e.g. `GB-month` or `hour`; GB are of 2**30 bytes."""
    usd: float = Field(gt=0)
    date: date
    """Day of the observation."""
    source: str


class ServiceCost(BaseModel):
    """What was used besides machines."""

    model_config = ConfigDict(frozen=True)

    what: str
    quantity: float
    unit: str
    usd_per_unit: float
    price_date: date
    source: str
    usd: Decimal


def service_price(name: Service, region: str) -> ServicePrice | None:
    """The newest price of the catalog; None where it has none for this region."""
    book = load_table("services")
    rows = [row for row in book["services"] if row["name"] == name and region in row["regions"]]
    if not rows:
        return None
    newest = max(rows, key=lambda row: str(row["date"]))
    return ServicePrice(
        name=name, region=region, unit=newest["unit"], usd=newest["usd"], date=date.fromisoformat(newest["date"]),
        source=book["sources"][newest["source"]],
    )  # fmt: skip


HOURS_PER_MONTH = 730
"""In a GB-month, on the average of a year."""

GB = 2**30
"""Bytes of what S3 calls one (its FAQ, "How will I be charged")."""

REQUESTS = 1000
"""Of which S3's prices are."""

_CENT = Decimal("0.01")


def round_to_cents(parts: Sequence[Fraction]) -> list[Decimal]:
    """Each part in whole cents, so that together they are the rounded sum: what is left over goes to the parts that
    lost most by rounding down."""
    total = round(sum(parts, start=Fraction(0)) * 100)
    whole = [int(part * 100) for part in parts]
    by_rest = sorted(range(len(parts)), key=lambda i: (whole[i] - parts[i] * 100, i))
    for i in by_rest[: total - sum(whole)]:
        whole[i] += 1
    return [n * _CENT for n in whole]
