"""Prices of storage, requests and what runs all the time, each with its date and source; and sums in whole cents."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from convoy.catalog import load_table
from convoy.config.base import FrozenConfig
from convoy.config.cluster import FileSystemConfig

Service = Literal[
    "s3_storage", "s3_puts", "s3_gets", "nat_gateway", "public_ipv4", "eks_cluster", "fsx_ssd_125", "transfer"
]
"""s3_puts: PUT, COPY, POST and LIST; s3_gets: all others but DELETE, which is free. nat_gateway: without its traffic.
eks_cluster: its control plane, for versions in standard support. fsx_ssd_125: FSx for Lustre on SSD with 125 MB/s for
each TiB. transfer: from this region to another one."""

FILE_SYSTEMS: dict[int, Service] = {125: "fsx_ssd_125"}
"""Of FSx for Lustre, by MB/s for each TiB: the classes whose price has a source."""


class ServicePrice(FrozenConfig):
    """US dollars for one unit, the first tier where there are several."""

    name: Service | Literal["fsx"]
    """fsx: a file system at a price of one's own."""
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


def service_price(name: Service, region: str, to: str | None = None) -> ServicePrice | None:
    """The newest price of the catalog; None where it has none for this region. to: the region that a transfer goes to:
    a price for exactly this pair comes before that of any other region."""
    book = load_table("services")
    named = [row for row in book["services"] if row["name"] == name and region in row["regions"]]
    pair = [row for row in named if to in row.get("to", ())]
    rows = pair or [row for row in named if "to" not in row]
    if not rows:
        return None
    newest = max(rows, key=lambda row: str(row["date"]))
    return ServicePrice(
        name=name, region=region, unit=newest["unit"], usd=newest["usd"], date=date.fromisoformat(newest["date"]),
        source=book["sources"][newest["source"]],
    )  # fmt: skip


def file_system_price(wanted: FileSystemConfig, region: str) -> ServicePrice | None:
    """Of one GiB and month: as configured, else the catalog's; None where that has none of its class and region."""
    own, name = wanted.price, FILE_SYSTEMS.get(wanted.mb_per_second_per_tib)
    if own is None:
        return service_price(name, region) if name else None
    return ServicePrice(
        name="fsx", region=region, unit="GB-month", usd=own.usd_per_gib_month, date=own.date, source=own.source
    )


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
