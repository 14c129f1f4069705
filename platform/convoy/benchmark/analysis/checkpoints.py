"""Measured saves and restores, and predictions from their rates for larger states. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Literal

from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case, FrozenResult
from convoy.benchmark.results.values import DURABLE, RESTORE, SAVE, STALL, SampleMedian, sample_median, sample_median_of
from convoy.catalog.instances import instance
from convoy.config.errors import ConfigError
from convoy.stats.interval import FEWEST, Interval, interval

SUITE = "checkpoint"

PREDICTED_BYTES = (28e9, 52e9, 120e9)
"""Sizes of state whose saves and loads are predicted."""

Limit = Literal["the writers", "the storage that was bought", "the network of the machines"]


class Prediction(FrozenResult):
    """How long a save or a load takes for all ranks together. Never measured."""

    what: Literal["save", "load"]
    state_bytes: float
    writers: int
    """Ranks that write or read at once."""
    seconds: float
    low: float
    """From the interval of the measured rate; equal to `seconds` where something else is the limit."""
    high: float
    limit: Limit
    """The slowest of the three."""
    bytes_per_second: float
    """Rate of that limit, for all writers together."""


class CheckpointFigures(FrozenResult):
    """A training that saves, compared with the same one that does not."""

    group: str
    case: str
    model: str
    state_bytes: float
    rest_bytes: float
    """Saved and restored with nothing else going on: the state, filled up where it is small."""
    writers: int
    stall: SampleMedian | None
    first_stall_seconds: float | None
    extra: Interval | None
    """Seconds by which a save lengthens the training in all, over pairs of blocks."""
    durable: SampleMedian | None
    save: SampleMedian | None
    first_save_seconds: float | None
    restore: SampleMedian | None
    save_rate: SampleMedian | None
    """Bytes per second and writer."""
    restore_rate: SampleMedian | None
    storage_bytes_per_second: float | None
    """Bought for the predicted job; None: not configured."""
    network_bytes_per_second: float | None
    """Network of all machines of the predicted job; None: not known."""
    predictions: tuple[Prediction, ...]


def checkpoint_figures(cases: Sequence[Case]) -> tuple[CheckpointFigures, ...]:
    """One for each case of the suite that saved."""
    own = {(case.group, case.name): case for case in cases if case.suite == SUITE}
    return tuple(_figures(case, own) for case in own.values() if values.SAVED_BYTES in case.values and not case.store)


def predict(
    operation: Literal["save", "load"],
    state_bytes: float,
    writers: int,
    rate: SampleMedian,
    storage_bytes_per_second: float | None,
    network_bytes_per_second: float | None,
) -> Prediction:
    """The longest of what the writers, the storage and the network need: bytes over what each gives in all.

    rate: bytes per second of one writer, as measured.
    """
    limits: dict[Limit, float] = {"the writers": writers * rate.median}
    if storage_bytes_per_second is not None:
        limits["the storage that was bought"] = storage_bytes_per_second
    if network_bytes_per_second is not None:
        limits["the network of the machines"] = network_bytes_per_second
    limit = min(limits, key=lambda name: limits[name])
    most = min((each for name, each in limits.items() if name != "the writers"), default=math.inf)
    return Prediction(
        what=operation,
        state_bytes=state_bytes,
        writers=writers,
        seconds=state_bytes / limits[limit],
        low=state_bytes / min(most, writers * rate.high),
        high=state_bytes / min(most, writers * rate.low),
        limit=limit,
        bytes_per_second=limits[limit],
    )


def _figures(case: Case, group: Mapping[tuple[str, str], Case]) -> CheckpointFigures:
    measured, state = case.values, case.values[values.SAVED_BYTES]
    size = measured.get(values.REST_BYTES, state)
    ranks = case.hardware.ranks
    share = size / ranks
    rates = {name: sample_median([share / s for s in case.samples.get(name, ()) if s > 0]) for name in (SAVE, RESTORE)}
    writers = int(measured.get(values.PREDICTED_WRITERS, ranks))
    bought, network = measured.get(values.STORAGE_BYTES_PER_SECOND), _catalog_network_bytes_per_second(case, writers)
    return CheckpointFigures(
        group=case.group,
        case=case.name,
        model=case.model,
        state_bytes=state,
        rest_bytes=size,
        writers=ranks,
        stall=sample_median_of(case, STALL),
        first_stall_seconds=measured.get(values.FIRST_STALL_SECONDS),
        extra=_save_overhead(case, group.get((case.group, case.baseline or ""))),
        durable=sample_median_of(case, DURABLE),
        save=sample_median_of(case, SAVE),
        first_save_seconds=measured.get(values.FIRST_SAVE_SECONDS),
        restore=sample_median_of(case, RESTORE),
        save_rate=rates[SAVE],
        restore_rate=rates[RESTORE],
        storage_bytes_per_second=bought,
        network_bytes_per_second=network,
        predictions=tuple(_predictions(rates[SAVE], rates[RESTORE], writers, bought, network)),
    )


def _predictions(
    save: SampleMedian | None, load: SampleMedian | None, writers: int, bought: float | None, network: float | None
) -> Iterator[Prediction]:
    rates: tuple[tuple[Literal["save", "load"], SampleMedian | None], ...] = ("save", save), ("load", load)
    for size, (what, rate) in product(PREDICTED_BYTES, rates):
        if rate is not None:
            yield predict(what, size, writers, rate, bought, network)


def _save_overhead(case: Case, base: Case | None) -> Interval | None:
    """A block has one save: by how much it is longer than the block of its pair, over all of its steps."""
    if base is None or case.status != "measured" or base.status != "measured":
        return None
    others = {block.number: block for block in base.blocks}
    both = [(block, others[block.number]) for block in case.blocks if block.number in others]
    if len(both) < FEWEST:
        return None
    return interval([own.steps * (own.seconds - other.seconds) for own, other in both])


def _catalog_network_bytes_per_second(case: Case, writers: int) -> float | None:
    """Bytes per second of as many machines as so many ranks fill."""
    if case.hardware.instance_type is None:
        return None
    try:
        machine = instance(case.hardware.instance_type)
    except ConfigError:  # a later catalog may have lost it
        return None
    per_machine = max(1, case.hardware.ranks // case.hardware.nodes)
    return math.ceil(writers / per_machine) * machine.network_gbps * 1e9 / 8
