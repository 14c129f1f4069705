"""What the checkpoints of a training cost: what they take of a bucket, and what S3 is asked."""

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from convoy.catalog.services import (
    GB,
    HOURS_PER_MONTH,
    REQUESTS,
    Service,
    ServiceCost,
    ServicePrice,
    cents,
    service_price,
)
from convoy.checkpoint.format import CHUNK_BYTES, FILE_BYTES
from convoy.planner.cost.spot import Campaign


@dataclass(frozen=True)
class Kept:
    """Checkpoints, and where they are kept."""

    root: str
    """URI of the job's root."""
    region: str
    state_bytes: float
    writers: int
    checkpoints: int
    """That are there at a time."""
    verified: bool = True
    """Each is read back once."""
    provisioned_gb: float | None = None
    """Size of the FSx for Lustre file system (125 MB/s per TiB) that is there for this training alone, in 2**30 bytes;
    None: there is none, or others pay for it too."""

    @property
    def chunks(self) -> int:
        """Of a checkpoint, all writers together."""
        return self.writers * math.ceil(self.state_bytes / self.writers / CHUNK_BYTES)

    @property
    def files(self) -> int:
        return self.writers * math.ceil(self.state_bytes / self.writers / FILE_BYTES)


def requests_of_a_save(kept: Kept) -> tuple[int, int]:
    """PUT and the like, and GET and the like, of one checkpoint on S3; at least, for nobody has to try again.

    Each writer sends its chunks, begins and completes its files, and puts a record and the mark that it was read back;
    then there are a commit and the mark of the whole (docs/reference/checkpoint-format.md). To read back takes a
    request for each chunk, and of each writer for the commit and its record.
    """
    puts = kept.chunks + 2 * kept.files + kept.writers * (1 + kept.verified) + 1 + kept.verified
    return puts, kept.chunks + 2 * kept.writers if kept.verified else 0


def services(campaign: Campaign, kept: Kept) -> tuple[tuple[ServiceCost, ...], tuple[str, ...]]:
    """In whole cents, and what is not counted."""
    used, not_counted = _used(campaign, kept)
    prices = {name: service_price(name, kept.region) for _, name, _ in used}
    known = [(what, quantity, price) for what, name, quantity in used if (price := prices[name]) is not None]
    usd = cents([quantity * Fraction(str(price.usd)) for _, quantity, price in known])
    found = tuple(_cost(what, quantity, price, cost) for (what, quantity, price), cost in zip(known, usd, strict=True))
    lacking = [f"{what}: the catalog has no price of it in {kept.region}" for what, name, _ in used if not prices[name]]
    return found, (*lacking, *not_counted)


def _used(campaign: Campaign, kept: Kept) -> tuple[list[tuple[str, Service, Fraction]], tuple[str, ...]]:
    """How much of what. Each restart reads a checkpoint."""
    months = Fraction(campaign.seconds) / 3600 / HOURS_PER_MONTH
    if not kept.root.startswith("s3://"):
        if kept.provisioned_gb is None:
            return [], ("file systems, which are paid for by what is provisioned",)
        return [("file system", "fsx_lustre_ssd_125", Fraction(kept.provisioned_gb) * months)], ()
    puts, gets = requests_of_a_save(kept)
    asked = campaign.saves * gets + campaign.interruptions * kept.chunks
    return [
        ("checkpoints", "s3_storage", kept.checkpoints * Fraction(kept.state_bytes) / GB * months),
        ("requests: PUT, COPY, POST, LIST", "s3_puts", Fraction(campaign.saves * puts) / REQUESTS),
        ("requests: GET and others", "s3_gets", Fraction(asked) / REQUESTS),
    ], ("lists, tries that are repeated, and what else is in the bucket",)


def _cost(what: str, quantity: Fraction, price: ServicePrice, usd: Decimal) -> ServiceCost:
    return ServiceCost(
        what=what,
        quantity=float(quantity),
        unit=price.unit,
        usd_per_unit=price.usd,
        price_date=price.date,
        source=price.source,
        usd=usd,
    )
