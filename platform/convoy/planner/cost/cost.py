"""What a training costs: machines by what they do meanwhile, and its checkpoints. Whole cents that add up."""

import math
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction

from convoy.catalog.prices import Price
from convoy.catalog.services import (
    GB,
    HOURS_PER_MONTH,
    REQUESTS,
    Service,
    file_system_price,
    round_to_cents,
    service_price,
)
from convoy.checkpoint.format import CHUNK_BYTES, FILE_BYTES
from convoy.config.cluster import FileSystemConfig
from convoy.planner.cost.campaign import Campaign

DAY = 86400.0

FILE_SYSTEM = "FSx for Lustre"
"""The name that a file system's part of the cost begins with."""

BOUGHT_AHEAD = "capacity_block"
"""The market that sells whole days."""


@dataclass(frozen=True)
class StoredCheckpoints:
    """The checkpoints of a training, and where they are stored."""

    root: str
    """URI of the job's root."""
    region: str
    state_bytes: float
    writers: int
    checkpoints: int
    """How many exist at a time."""
    verified: bool = True
    """Each is read back once."""
    file_system: FileSystemConfig | None = None
    """It exists for as long as the training takes."""

    @property
    def chunks(self) -> int:
        """Chunks of a checkpoint, of all writers together."""
        return self.writers * math.ceil(self.state_bytes / self.writers / CHUNK_BYTES)

    @property
    def files(self) -> int:
        return self.writers * math.ceil(self.state_bytes / self.writers / FILE_BYTES)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """US dollars of a campaign in one market."""

    usd: float
    usd_per_hour: float
    """One machine: the price, or that of its cheapest or dearest zone."""
    price_date: date
    source: str
    stale: bool = False
    """The price is more than a year older than the newest one, and may no longer be available."""
    machines: dict[str, float]
    """By what they do meanwhile: the parts of a `Campaign`, and the unused rest of the last day where days are sold."""
    services: dict[str, float]
    not_counted: tuple[str, ...]
    """What may cost something too."""


def campaign_cost(
    campaign: Campaign,
    nodes: int,
    price: Price,
    stored: StoredCheckpoints | None = None,
    usd_per_hour: float | None = None,
    *,
    stale: bool = False,
) -> Cost:
    """usd_per_hour: of one of the price's zones, in its place. stored: None: checkpoints are not counted."""
    usd = price.usd_per_hour if usd_per_hour is None else usd_per_hour
    machines = _machine_usd(campaign, nodes, usd, whole_days=price.market == BOUGHT_AHEAD)
    services, not_counted = ({}, ("checkpoints",)) if stored is None else _service_costs(campaign, stored)
    total = sum([*machines.values(), *services.values()], start=Decimal(0))
    return Cost(
        usd=float(total),
        usd_per_hour=usd,
        price_date=price.date,
        source=price.source,
        machines={name: float(each) for name, each in machines.items()},
        services={name: float(each) for name, each in services.items()},
        not_counted=not_counted,
        stale=stale,
    )


def _machine_usd(campaign: Campaign, nodes: int, usd_per_hour: float, *, whole_days: bool) -> dict[str, Decimal]:
    """Where whole days are sold, a machine that waits is paid too; elsewhere one is missing while the others wait."""
    seconds = campaign.part_seconds | {
        "unused": math.ceil(campaign.seconds / DAY) * DAY - campaign.seconds if whole_days else 0.0
    }
    paid = {name: nodes - 1 if name == "waiting" and not whole_days else nodes for name in seconds}
    per_second = Fraction(str(usd_per_hour)) / 3600
    usd = round_to_cents([Fraction(each) * paid[name] * per_second for name, each in seconds.items()])
    return dict(zip(seconds, usd, strict=True))


def puts_and_gets_of_a_save(stored: StoredCheckpoints) -> tuple[int, int]:
    """PUT and the like, and GET and the like, of one checkpoint on S3, without retries.

    Each writer sends its chunks, begins and completes its files, and puts a record and the mark that it was read back;
    then there are a commit and the mark of the whole (docs/reference/checkpoint-format.md). To read back takes a
    request for each chunk, and of each writer for the commit and its record.
    """
    puts = stored.chunks + 2 * stored.files + stored.writers * (1 + stored.verified) + 1 + stored.verified
    return puts, stored.chunks + 2 * stored.writers if stored.verified else 0


def storage_usage(campaign: Campaign, stored: StoredCheckpoints) -> list[tuple[str, Service, Fraction]]:
    """What S3 bills, in the units of its prices. Each restart reads a checkpoint. Empty where the root is no bucket
    of S3."""
    if not stored.root.startswith("s3://"):
        return []
    months = Fraction(campaign.seconds) / 3600 / HOURS_PER_MONTH
    puts, gets = puts_and_gets_of_a_save(stored)
    read = campaign.saves * gets + campaign.interruptions * stored.chunks
    return [
        ("checkpoints", "s3_storage", stored.checkpoints * Fraction(stored.state_bytes) / GB * months),
        ("requests: PUT, COPY, POST, LIST", "s3_puts", Fraction(campaign.saves * puts) / REQUESTS),
        ("requests: GET and others", "s3_gets", Fraction(read) / REQUESTS),
    ]


def _service_costs(campaign: Campaign, stored: StoredCheckpoints) -> tuple[dict[str, Decimal], tuple[str, ...]]:
    """In whole cents, and what is not counted."""
    usages = [
        (what, quantity, service_price(name, stored.region)) for what, name, quantity in storage_usage(campaign, stored)
    ]
    in_bucket = bool(usages)
    if (wanted := stored.file_system) is not None:
        months = Fraction(campaign.seconds) / 3600 / HOURS_PER_MONTH
        usages.append((file_system_text(wanted), wanted.gib * months, file_system_price(wanted, stored.region)))
    priced = {what: quantity * Fraction(str(price.usd)) for what, quantity, price in usages if price}
    lacking = [f"{what}: the catalog has no price of it in {stored.region}" for what, _, price in usages if not price]
    usd = dict(zip(priced, round_to_cents(list(priced.values())), strict=True))
    return usd, (*lacking, *_never_counted(stored, in_bucket=in_bucket))


def file_system_text(wanted: FileSystemConfig) -> str:
    """Size and throughput class."""
    return f"{FILE_SYSTEM}, {wanted.gib:,} GiB with {wanted.mb_per_second_per_tib} MB/s a TiB"


def _never_counted(stored: StoredCheckpoints, *, in_bucket: bool) -> list[str]:
    if stored.root.startswith("gs://"):
        return ["checkpoints in the bucket and requests to it: the catalog has no prices of Google's"]
    if in_bucket:
        return [
            "lists, tries that are repeated, and what else is in the bucket",
            f"transfer, if the bucket is not in {stored.region}",
        ]
    return [] if stored.file_system else ["file systems, which are paid for by what is provisioned"]
