"""What a job has cost, from its event log. Pure.

Node time is cut as `goodput` cuts it, and each part is paid at the price that the node's machine had in that
generation. Cents are shared out so that the parts are the total, whichever way they are added.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from convoy.catalog.services import (
    GB,
    HOURS_PER_MONTH,
    REQUESTS,
    ServiceCost,
    ServicePrice,
    round_to_cents,
    service_price,
)
from convoy.job.events.registry import (
    CheckpointsPruned,
    Event,
    FileSystemRent,
    GenerationStarted,
    Rent,
    StepDone,
    StoreRequests,
)
from convoy.report.analysis.checkpoints import Ref, placed_commit
from convoy.report.analysis.cost import Cost, CostByUse, MachineCost, OnDemandPrice
from convoy.report.analysis.goodput import GenerationTime, generation_times
from convoy.report.train_report import Generation, NodeTime

UNKNOWN = "unknown"

_S3, _GCS = "s3://", "gs://"

_UNCOUNTED_REQUESTS = "requests of processes that were killed, in their last minute, and of steps other than the gang"


def cost(events: Sequence[Event], formed: Sequence[Generation], steps: int) -> Cost | None:
    """The cost of the whole log; None where no machine of it has a price or a name, as in a local run.

    formed: its generations, as `outcome.generations` gives them. steps: done on the living branch.
    """
    rents = _rents_by_node(events)
    if not rents:
        return None
    spent = generation_times(events, formed)
    machines = _machine_costs(spent, rents)
    services, file_systems, not_counted = _service_costs(events, rents)
    lacking = tuple(_why_unpriced(machine) for machine in machines if machine.usd is None)
    splits = [machine.usd for machine in machines if machine.usd is not None]
    split = None if lacking else sum(splits, start=CostByUse())
    extra = sum((service.usd for service in services), start=Decimal(0))
    total = None if split is None else split.total + extra
    tokens = _trained_tokens(events, steps)
    on_demand = _on_demand_cost(spent, rents)
    # A file system is paid for by the hour of the job, so on demand, without interruptions, it would have cost less.
    instead = None if on_demand is None else on_demand + extra - file_systems
    return Cost(
        machines=machines,
        services=services,
        lacking=lacking,
        not_counted=("machines before their agent began and after it ended, as while an image is pulled", *not_counted),
        split=split,
        total=total,
        tokens=tokens,
        usd_per_million_tokens=None if total is None or not tokens else float(total) / tokens * 1e6,
        on_demand=instead,
        on_demand_prices=() if instead is None else _on_demand_prices(rents.values()),
        file_systems=file_systems,
        saved=None if total is None or not instead else 1 - float((total - file_systems) / instead),
    )


def _rents_by_node(events: Iterable[Event]) -> dict[tuple[int, int], Rent]:
    return {(e.generation, e.node): e.rent for e in events if isinstance(e, GenerationStarted) and e.rent is not None}


def _rent_of_node(rents: Mapping[tuple[int, int], Rent], generation: int, node: int) -> Rent | None:
    """A node's rent or, where the log lacks it, node 0's or any other's of the generation."""
    own = rents.get((generation, node)) or rents.get((generation, 0))
    return own or next((rent for (number, _), rent in sorted(rents.items()) if number == generation), None)


def _machine_costs(spent: Sequence[GenerationTime], rents: Mapping[tuple[int, int], Rent]) -> tuple[MachineCost, ...]:
    times_by_rent: dict[Rent | None, list[GenerationTime]] = {}
    for each in spent:
        times_by_rent.setdefault(_rent_of_node(rents, each.generation, each.node), []).append(each)
    return tuple(_machine_cost(rent, of) for rent, of in times_by_rent.items())


def _machine_cost(rent: Rent | None, times: Sequence[GenerationTime]) -> MachineCost:
    seconds = [_seconds_by_use(each.time) for each in times]
    hours = {use: sum((Fraction(each[use]) for each in seconds), start=Fraction(0)) / 3600 for use in seconds[0]}
    usd = None
    if rent is not None and rent.usd_per_hour is not None:
        per_hour = Fraction(str(rent.usd_per_hour))
        usd = CostByUse(**dict(zip(hours, round_to_cents([part * per_hour for part in hours.values()]), strict=True)))
    return MachineCost(
        instance=rent.instance if rent else UNKNOWN,
        market=rent.market if rent else UNKNOWN,
        region=rent.region if rent else UNKNOWN,
        node_hours=float(sum(hours.values(), start=Fraction(0))),
        usd_per_hour=rent.usd_per_hour if rent else None,
        price_date=rent.price_date if rent else None,
        source=rent.source if rent else "",
        usd=usd,
    )


def _seconds_by_use(time: NodeTime) -> dict[str, float]:
    """Seconds of each part of a `CostByUse`."""
    return {
        "productive": time.productive_seconds,
        "recomputed": time.recomputed_seconds,
        "measuring": time.measuring_seconds,
        "stalled": time.checkpoint_seconds + time.waiting_seconds + time.other_seconds,
        "idle": time.restarting_seconds,
    }


def _why_unpriced(machine: MachineCost) -> str:
    if machine.instance == UNKNOWN:
        return f"of {machine.node_hours:.3g} node-hours the log does not say which machines they were"
    return f"the catalog has no {machine.market} price of {machine.instance} in {machine.region}"


def _on_demand_cost(spent: Sequence[GenerationTime], rents: Mapping[tuple[int, int], Rent]) -> Decimal | None:
    usd = Fraction(0)
    if all(rent.market == "on_demand" for rent in rents.values()):
        return None
    for each in spent:
        rent = _rent_of_node(rents, each.generation, each.node)
        if rent is None or rent.usd_per_hour_on_demand is None or rent.on_demand_date is None:
            return None
        seconds = each.time.seconds - each.time.recomputed_seconds - each.interrupted_seconds
        usd += Fraction(seconds) / 3600 * Fraction(str(rent.usd_per_hour_on_demand))
    return round_to_cents([usd])[0]


def _on_demand_prices(rents: Iterable[Rent]) -> tuple[OnDemandPrice, ...]:
    """Each price once."""
    prices = (
        OnDemandPrice(
            instance=rent.instance,
            region=rent.region,
            usd_per_hour=rent.usd_per_hour_on_demand,
            price_date=rent.on_demand_date,
            source=rent.on_demand_source,
        )
        for rent in rents
        if rent.usd_per_hour_on_demand is not None and rent.on_demand_date is not None
    )
    return tuple(dict.fromkeys(prices))


def _trained_tokens(events: Sequence[Event], steps: int) -> int:
    """Tokens of all steps, at the mean of the logged ones: steps take equally many, apart from padding."""
    logged = [e.tokens for e in events if isinstance(e, StepDone)]
    return round(sum(logged) / len(logged) * steps) if logged else 0


def _service_costs(
    events: Sequence[Event], rents: Mapping[tuple[int, int], Rent]
) -> tuple[tuple[ServiceCost, ...], Decimal, tuple[str, ...]]:
    """Storage of checkpoints in buckets until the last event, requests, transfer between regions and file systems; how
    much of that is for file systems; and what of the rest is not known. A bucket whose region is not in the log has the
    prices of the machines' region, and its transfer is not counted."""
    counted = [e for e in events if isinstance(e, StoreRequests)]
    requests = [e for e in counted if not e.bucket.startswith(_GCS)]
    home = next(iter(rents.values())).region
    regions = {e.bucket: e.region for e in requests if e.region is not None}
    stored = {tier: n for tier, n in sorted(_byte_seconds_by_tier(events).items()) if n}
    buckets = {tier: n for tier, n in stored.items() if tier.startswith(_S3)}
    asked = [*stored, *(e.bucket for e in counted)]
    google = sorted({"/".join(name.split("/")[:3]) for name in asked if name.startswith(_GCS)})
    folders = [tier for tier in stored if not tier.startswith((_S3, _GCS))]
    unplaced = sorted({e.bucket for e in requests} - regions.keys())
    file_systems = _hours_by_file_system(events, rents)
    notes = {
        "file systems, which are paid for by what is provisioned (cluster.file_system)": bool(folders)
        and not file_systems,
        f"storage in and requests to {', '.join(google)}: the catalog has no prices of Google's": bool(google),
        "what else is in the bucket, and storage after the last event": bool(buckets),
        "requests to S3, if there were any": not counted,
        _UNCOUNTED_REQUESTS: bool(counted),
        f"transfer between {home} and {', '.join(unplaced)}, if that is in another region": bool(unplaced),
    }
    provisioned = [_file_system_usage(*each, home) for each in file_systems.items()]
    usages = [
        *_storage_usages(buckets, regions, home),
        *_request_usages(requests, regions, home),
        *_transfer_usages(requests, regions, rents),
        *provisioned,
    ]
    priced = [(usage, usage.price) for usage in usages if usage.price is not None]
    unpriced = [
        f"{usage.what}: the catalog has no price of it in {usage.region}" for usage in usages if usage.price is None
    ]
    usd = round_to_cents([usage.quantity * Fraction(str(price.usd)) for usage, price in priced])
    services = tuple(_service_cost(*each, cost) for each, cost in zip(priced, usd, strict=True))
    of_file_systems = (cost for (usage, _), cost in zip(priced, usd, strict=True) if usage in provisioned)
    return (
        services,
        sum(of_file_systems, start=Decimal(0)),
        (*unpriced, *(note for note, applies in notes.items() if applies)),
    )


class _ServiceUsage(NamedTuple):
    """So much of a service, not yet in cents."""

    what: str
    region: str
    quantity: Fraction
    price: ServicePrice | None


def _storage_usages(buckets: Mapping[str, Fraction], regions: Mapping[str, str], home: str) -> Iterator[_ServiceUsage]:
    """buckets: byte-seconds in each."""
    for tier, n in buckets.items():
        months = n / GB / (HOURS_PER_MONTH * 3600)
        region = regions.get(tier.removeprefix(_S3).partition("/")[0], home)
        yield _ServiceUsage(f"checkpoints in {tier}", region, months, service_price("s3_storage", region))


def _request_usages(
    requests: Sequence[StoreRequests], regions: Mapping[str, str], home: str
) -> Iterator[_ServiceUsage]:
    for bucket in sorted({e.bucket for e in requests}):
        own = [e for e in requests if e.bucket == bucket]
        what, region = f"requests to {bucket}", regions.get(bucket, home)
        if puts := sum(e.puts for e in own):
            quantity, price = Fraction(puts, REQUESTS), service_price("s3_puts", region)
            yield _ServiceUsage(f"{what}: PUT, COPY, POST, LIST", region, quantity, price)
        if gets := sum(e.gets for e in own):
            quantity, price = Fraction(gets, REQUESTS), service_price("s3_gets", region)
            yield _ServiceUsage(f"{what}: GET and others", region, quantity, price)


def _transfer_usages(
    requests: Sequence[StoreRequests], regions: Mapping[str, str], rents: Mapping[tuple[int, int], Rent]
) -> Iterator[_ServiceUsage]:
    """What went between the machines' region and that of a bucket elsewhere: the region that sends is paid."""
    moved: dict[tuple[str, str], int] = {}
    for e in requests:
        bucket, rent = regions.get(e.bucket), _rent_of_node(rents, e.generation, e.node)
        if bucket is not None and rent is not None and bucket != rent.region:
            moved[rent.region, bucket] = moved.get((rent.region, bucket), 0) + e.sent_bytes
            moved[bucket, rent.region] = moved.get((bucket, rent.region), 0) + e.received_bytes
    for (sender, receiver), n in sorted(moved.items()):
        if n:
            price = service_price("transfer", sender, to=receiver)
            yield _ServiceUsage(f"transfer from {sender} to {receiver}", sender, Fraction(n, GB), price)


def _hours_by_file_system(
    events: Sequence[Event], rents: Mapping[tuple[int, int], Rent]
) -> dict[FileSystemRent, Fraction]:
    """What the configuration of each generation names, until the next generation starts: it is there while the job
    waits, too. The first one's is there from the first event, the last one's until the last event."""
    starts: dict[int, float] = {}
    for e in events:
        if isinstance(e, GenerationStarted) and e.rent is not None:
            starts[e.generation] = min(e.t, starts.get(e.generation, e.t))
    numbers, times = sorted(starts), [e.t for e in events]
    ends = [*(starts[number] for number in numbers[1:]), max(times)]
    begins = [min(times), *ends[:-1]]
    hours: dict[FileSystemRent, Fraction] = {}
    for number, begin, end in zip(numbers, begins, ends, strict=True):
        rent = _rent_of_node(rents, number, 0)
        if rent is not None and rent.file_system is not None:
            before = hours.get(rent.file_system, Fraction(0))
            hours[rent.file_system] = before + Fraction(max(end - begin, 0.0)) / 3600
    return hours


def _file_system_usage(rent: FileSystemRent, hours: Fraction, region: str) -> _ServiceUsage:
    price = None
    if rent.usd_per_gib_month is not None and rent.price_date is not None:
        price = ServicePrice(
            name="fsx", region=region, unit="GB-month", usd=rent.usd_per_gib_month, date=rent.price_date,
            source=rent.source,
        )  # fmt: skip
    what = f"{rent.name}, {float(hours):,.1f} h"
    return _ServiceUsage(what, region, rent.gib * hours / HOURS_PER_MONTH, price)


def _service_cost(usage: _ServiceUsage, price: ServicePrice, usd: Decimal) -> ServiceCost:
    return ServiceCost(
        what=usage.what, quantity=float(usage.quantity), unit=price.unit, usd_per_unit=price.usd,
        price_date=price.date, source=price.source, usd=usd,
    )  # fmt: skip


def _byte_seconds_by_tier(events: Sequence[Event]) -> dict[str, Fraction]:
    """For each tier the bytes of its checkpoints, times how long they were there."""
    end = max((e.t for e in events), default=0.0)
    present: dict[tuple[str, Ref], tuple[float, int]] = {}
    totals: dict[str, Fraction] = {}

    def remove(tier: str, ref: Ref, at: float) -> None:
        since, size = present.pop((tier, ref), (at, 0))
        totals[tier] = totals.get(tier, Fraction(0)) + size * Fraction(max(at - since, 0.0))

    for e in events:
        placed = placed_commit(e)
        if placed is not None:
            ref, tier, size = placed
            present.setdefault((tier, ref), (e.t, size))
        elif isinstance(e, CheckpointsPruned):
            for ref in e.commits:
                remove(e.tier, ref, e.t)
    for tier, ref in list(present):
        remove(tier, ref, end)
    return totals
