"""What a job has cost, from its event log. Pure.

Node time is cut as `goodput` cuts it, and each part is paid at the price that the node's machine had in that
generation. Cents are shared out so that the parts are the total, whichever way they are added.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction

from convoy.catalog.services import ServicePrice, service_price
from convoy.events.types import (
    AnyEvent,
    CheckpointCopied,
    CheckpointSaved,
    CheckpointsPruned,
    GenerationStarted,
    Rent,
    Restored,
    StepDone,
)
from convoy.report.cost import Cost, MachineCost, ServiceCost, Split
from convoy.report.goodput import GenerationTime, times
from convoy.report.train_report import Generation

HOURS_PER_MONTH = 730
"""In a GB-month, on the average of a year."""

GB = 2**30
"""Bytes of what S3 calls one (its FAQ, "How will I be charged")."""

NOT_TOLD = "not told"

_CENT = Decimal("0.01")
_KINDS = ("productive", "recomputed", "stalled", "idle")


def cost(events: Sequence[AnyEvent], formed: Sequence[Generation], steps: int) -> Cost | None:
    """Of the whole log; None where no machine of it has a price or a name, as in a local run.

    formed: its generations, as `outcome.generations` gives them. steps: done on the living branch.
    """
    rents = _rents(events)
    if not rents:
        return None
    spent = times(events, formed)
    machines = _machines(spent, rents)
    services, not_counted = _services(events, rents)
    lacking = tuple(_unknown(machine) for machine in machines if machine.usd is None)
    splits = [machine.usd for machine in machines if machine.usd is not None]
    split = None if lacking else sum(splits, start=Split())
    beside = sum((service.usd for service in services), start=Decimal(0))
    total = None if split is None else split.total + beside
    tokens = _tokens(events, steps)
    on_demand = _on_demand(spent, rents)
    instead = None if on_demand is None else on_demand + beside
    return Cost(
        machines=machines,
        services=services,
        lacking=lacking,
        not_counted=(
            "machines before their agent began and after it ended, as while an image is pulled",
            *not_counted,
        ),
        split=split,
        total=total,
        tokens=tokens,
        usd_per_million_tokens=None if total is None or not tokens else float(total) / tokens * 1e6,
        on_demand=instead,
        saved=None if total is None or not instead else 1 - float(total / instead),
    )


def cents(parts: Sequence[Fraction]) -> list[Decimal]:
    """Each part in whole cents, so that together they are the rounded sum: what is left over goes to the parts that
    lost most by rounding down."""
    total = round(sum(parts, start=Fraction(0)) * 100)
    whole = [int(part * 100) for part in parts]
    by_rest = sorted(range(len(parts)), key=lambda i: (whole[i] - parts[i] * 100, i))
    for i in by_rest[: total - sum(whole)]:
        whole[i] += 1
    return [n * _CENT for n in whole]


def _rents(events: Iterable[AnyEvent]) -> dict[tuple[int, int], Rent]:
    """By generation and node; of a node that did not tell, node 0's, or any other's."""
    return {(e.generation, e.node): e.rent for e in events if isinstance(e, GenerationStarted) and e.rent is not None}


def _rent(rents: Mapping[tuple[int, int], Rent], generation: int, node: int) -> Rent | None:
    own = rents.get((generation, node)) or rents.get((generation, 0))
    return own or next((rent for (number, _), rent in sorted(rents.items()) if number == generation), None)


def _machines(spent: Sequence[GenerationTime], rents: Mapping[tuple[int, int], Rent]) -> tuple[MachineCost, ...]:
    found: dict[Rent | None, list[GenerationTime]] = {}
    for each in spent:
        found.setdefault(_rent(rents, each.generation, each.node), []).append(each)
    return tuple(_machine(rent, of) for rent, of in found.items())


def _machine(rent: Rent | None, of: Sequence[GenerationTime]) -> MachineCost:
    hours = [sum((Fraction(_seconds(each, kind)) for each in of), start=Fraction(0)) / 3600 for kind in _KINDS]
    usd = None
    if rent is not None and rent.usd_per_hour is not None:
        per_hour = Fraction(str(rent.usd_per_hour))
        usd = Split(**dict(zip(_KINDS, cents([part * per_hour for part in hours]), strict=True)))
    return MachineCost(
        instance=rent.instance if rent else NOT_TOLD,
        market=rent.market if rent else NOT_TOLD,
        region=rent.region if rent else NOT_TOLD,
        node_hours=float(sum(hours, start=Fraction(0))),
        usd_per_hour=rent.usd_per_hour if rent else None,
        price_date=rent.price_date if rent else None,
        source=rent.source if rent else "",
        usd=usd,
    )


def _seconds(each: GenerationTime, kind: str) -> float:
    time = each.time
    return {
        "productive": time.productive_seconds,
        "recomputed": time.recomputed_seconds,
        "stalled": time.checkpoint_seconds + time.waiting_seconds,
        "idle": time.restarting_seconds,
    }[kind]


def _unknown(machine: MachineCost) -> str:
    if machine.instance == NOT_TOLD:
        return f"of {machine.node_hours:.3g} node-hours the log does not tell which machines they were"
    return f"the catalog has no {machine.market} price of {machine.instance} in {machine.region}"


def _on_demand(spent: Sequence[GenerationTime], rents: Mapping[tuple[int, int], Rent]) -> Decimal | None:
    usd = Fraction(0)
    if all(rent.market == "on_demand" for rent in rents.values()):
        return None
    for each in spent:
        rent = _rent(rents, each.generation, each.node)
        if rent is None or rent.usd_per_hour_on_demand is None:
            return None
        seconds = each.time.seconds - each.time.recomputed_seconds - each.interrupted_seconds
        usd += Fraction(seconds) / 3600 * Fraction(str(rent.usd_per_hour_on_demand))
    return cents([usd])[0]


def _tokens(events: Sequence[AnyEvent], steps: int) -> int:
    """Steps take equally many tokens, but for what padding leaves out: those that were logged tell how many."""
    logged = [e.tokens for e in events if isinstance(e, StepDone)]
    return round(sum(logged) / len(logged) * steps) if logged else 0


def _services(
    events: Sequence[AnyEvent], rents: Mapping[tuple[int, int], Rent]
) -> tuple[tuple[ServiceCost, ...], tuple[str, ...]]:
    """Storage of checkpoints in buckets until the last event, at the price of the machines' region; and what of the
    rest is not known."""
    region = next(iter(rents.values())).region
    price = service_price("s3_storage", region)
    kept = {tier: n for tier, n in _byte_seconds(events).items() if n}
    buckets = {tier: n for tier, n in kept.items() if tier.startswith("s3://")}
    found, left_out = [], []
    if buckets and price is None:
        left_out.append(f"storage in S3: the catalog has no price of it in {region}")
    elif price is not None:
        found = [_storage(tier, n, price) for tier, n in sorted(buckets.items())]
    if len(kept) > len(buckets):
        left_out.append("file systems, which are paid for by what is provisioned")
    if buckets:
        left_out.append("requests to S3, what else is in the bucket, and storage after the last event")
    return tuple(found), tuple(left_out)


def _storage(tier: str, byte_seconds: Fraction, price: ServicePrice) -> ServiceCost:
    quantity = byte_seconds / GB / (HOURS_PER_MONTH * 3600)
    return ServiceCost(
        what=f"checkpoints in {tier}",
        quantity=float(quantity),
        unit=price.unit,
        usd_per_unit=price.usd,
        price_date=price.date,
        source=price.source,
        usd=cents([quantity * Fraction(str(price.usd))])[0],
    )


def _byte_seconds(events: Sequence[AnyEvent]) -> dict[str, Fraction]:
    """By tier: the bytes of the checkpoints there, times how long they were."""
    end = max((e.t for e in events), default=0.0)
    there: dict[tuple[str, int, int], tuple[float, int]] = {}
    found: dict[str, Fraction] = {}

    def gone(key: tuple[str, int, int], at: float) -> None:
        since, size = there.pop(key, (at, 0))
        found[key[0]] = found.get(key[0], Fraction(0)) + size * Fraction(max(at - since, 0.0))

    for e in events:
        match e:
            case CheckpointSaved():
                there[e.tier, e.generation, e.step] = (e.t, e.bytes)
            case CheckpointCopied() if e.error is None:
                there[e.tier, e.from_generation, e.step] = (e.t, e.bytes)
            case Restored():  # of whose save the log may have lost the word
                there.setdefault((e.tier, e.from_generation, e.step), (e.t, e.bytes))
            case CheckpointsPruned():
                for generation, step in e.commits:
                    gone((e.tier, generation, step), e.t)
    for key in list(there):
        gone(key, end)
    return found
