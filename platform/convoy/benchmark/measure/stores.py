"""Saves and restores at several stores, one after the other, and at folders the same state by gzip + pickle.

A store that cannot be used, or fails while it is measured, becomes a case without figures; the next one is measured all
the same. Whatever goes wrong is raised by all ranks alike, so that none waits for another.
"""

import contextlib
import statistics
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Literal

from convoy import script
from convoy.benchmark.groups import Group, VariantSpec
from convoy.benchmark.measure.provenance import host_memory_bytes, provenance
from convoy.benchmark.results import values
from convoy.benchmark.results.case import LOCAL, Case, Hardware, MeasuredStore, Status
from convoy.benchmark.variants.build import PreparedData
from convoy.benchmark.variants.convoy_saving import SAVES_AT_REST, SavingVariant, delete_place, new_place
from convoy.benchmark.variants.pickled_state import PickledState
from convoy.benchmark.variants.ranks import RankFailedError, join_world, run_together
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.group import all_gather_objects
from convoy.config.checkpoint import StoreConfig
from convoy.config.errors import ConfigError, one_line
from convoy.config.run import RunConfig
from convoy.gang.async_call import BackgroundCall
from convoy.storage import ObjectMissing, StoreUnavailable, folder_path, open_store
from convoy.storage.uri import check_extra
from convoy.storage.usage import bucket_name
from convoy.training.data import open_data
from convoy.training.measure.machine import environment, slowest_seconds
from convoy.training.process_groups import Ranks

PROOF_SECONDS = 180.0
"""Longer than the clients of buckets try a request again, so that the reason is theirs."""

GZIP_SECONDS = 300.0
"""Time limit of a save by gzip + pickle."""

GZIP_SECONDS_IN_ALL = 60.0
"""After so long none is repeated."""

REQUESTS = {
    values.SAVE: (values.SAVE_PUTS, values.SAVE_GETS),
    values.RESTORE: (values.RESTORE_PUTS, values.RESTORE_GETS),
}

Progress = Callable[[], None]


@dataclass
class StoreResult:
    """What was measured of a store, the same on all ranks."""

    status: Status = "measured"
    reason: str = ""
    region: str | None = None
    parameters: int = 0
    tokens_per_step: int = 0
    values: dict[str, float] = field(default_factory=dict)
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)


def measure_stores(group: Group, ranks: Ranks, data: PreparedData, cores: int) -> Iterator[Case]:
    """A case for each variant of the group, on rank 0 as soon as it is measured; on others none. All ranks call it.
    cores: of this host."""
    steps = count(1)

    def progress() -> None:
        script.progress(next(steps))

    for spec in group.variants:
        began = datetime.now(UTC)
        if ranks.first:
            print(f"{group.name}: {spec.name}", flush=True)
        result = measure_store(spec, group, ranks, data, progress)
        if ranks.first:
            if result.reason:
                print(f"{spec.name}: {result.reason}", flush=True)
            yield _case(group, spec, result, ranks, began, cores)


def measure_store(spec: VariantSpec, group: Group, ranks: Ranks, data: PreparedData, progress: Progress) -> StoreResult:
    """Saves during training and at rest, and restores, below the root of the variant. All ranks call it alike."""
    config = spec.config(group.run)
    place = new_place(str(config.root), ranks)
    least_bytes = 1e6 * group.predict.least_mb_per_writer if group.predict is not None else 0.0
    result = StoreResult()
    reached = False
    try:
        check_store(None if spec.name == LOCAL else str(config.root), place, config.checkpoint.store, ranks)
        reached = True
        progress()
        variant = _build_variant(spec, group, ranks, data, place)
        with closing(variant):
            for _ in range(1 + SAVES_AT_REST):
                variant.time_save_during_training(progress)
            variant.time_saves_without_training(least_bytes, progress)
            if folder_path(place) is not None:
                _measure_pickling(variant, config, place, ranks, progress, result)
        _note_figures(variant, result)
    except (RankFailedError, CheckpointError, StoreUnavailable, ConfigError) as error:
        reason = all_gather_objects(one_line(error), ranks.control)[0]
        result = StoreResult(status="failed", reason=reason)
    if ranks.first and (reached or folder_path(place) is not None):
        with contextlib.suppress(StoreUnavailable):
            delete_place(place, config.checkpoint.store)
    return result


def check_store(root: str | None, place: str, config: StoreConfig, ranks: Ranks) -> None:
    """Raise RankFailedError, on all ranks, for a store below which they cannot save together. All ranks call it.

    root: of the store, a folder of which must exist; None: it is the run's, which is made. place: below it, which
    nobody uses.
    """
    name = "proofs/rank-0"

    def prove() -> None:
        check_extra(place)
        folder = folder_path(root) if root is not None else None
        if folder is not None and not folder.is_dir():
            raise StoreUnavailable(f"{folder}: there is no such folder; is it mounted?")
        store = open_store(place, config)
        store.prove()
        if ranks.first:
            store.create(name, b"written by rank 0")

    def read() -> None:
        try:
            open_store(place, config).read(name)
        except ObjectMissing:
            why = "rank 0 wrote an object that is not there; all nodes must share the store"
            raise StoreUnavailable(f"{place}: {why}") from None

    run_together(BackgroundCall(place, prove, PROOF_SECONDS).result, ranks)
    run_together(BackgroundCall(place, read, PROOF_SECONDS).result, ranks)


def _build_variant(spec: VariantSpec, group: Group, ranks: Ranks, data: PreparedData, place: str) -> SavingVariant:
    config = spec.config(group.run)
    world = join_world(ranks, ranks.place.world_size, config.parallel)
    data_id, fingerprints = data
    batches = open_data(config, str(group.run.root), data_id, fingerprints[spec.name], world)
    return SavingVariant(spec.name, config, world, batches, place)


def _note_figures(variant: SavingVariant, result: StoreResult) -> None:
    for sample, (puts, gets) in REQUESTS.items():
        if counted := variant.requests[sample]:
            result.values[puts] = statistics.median(each.puts for each in counted)
            result.values[gets] = statistics.median(each.gets for each in counted)
    result.values |= variant.values
    result.samples |= {name: tuple(each) for name, each in variant.samples.items()}
    result.region = variant.region
    result.parameters, result.tokens_per_step = variant.parameters, variant.tokens_per_step


def _measure_pickling(
    variant: SavingVariant,
    config: RunConfig,
    place: str,
    ranks: Ranks,
    progress: Progress,
    result: StoreResult,
) -> None:
    """The same state below the same folder, by gzip + pickle."""
    folder = folder_path(place)
    assert folder is not None
    stages = config.parallel.pipeline > 1
    pickled = PickledState(folder / "gzip", variant.rest_state, ranks.place.rank, stages=stages)
    saves: list[float] = []
    restores: list[float] = []
    try:
        while len(saves) < SAVES_AT_REST and sum(saves) + sum(restores) < GZIP_SECONDS_IN_ALL:
            saves.append(_slowest_of_all(partial(pickled.save, GZIP_SECONDS, progress), ranks))
            progress()
            run_together(pickled.drop_caches, ranks)
            sizes = all_gather_objects(pickled.written_bytes(), ranks.control)
            restores.append(_slowest_of_all(pickled.restore, ranks))
            progress()
    except RankFailedError as error:
        result.not_measured["gzip + pickle"] = str(error)
        return
    result.values[values.GZIP_BYTES] = float(sum(sizes))
    result.samples |= {values.GZIP_SAVE: tuple(saves), values.GZIP_RESTORE: tuple(restores)}


def _slowest_of_all(work: Callable[[], None], ranks: Ranks) -> float:
    """Seconds of the slowest rank. Raises RankFailedError, on all ranks, if one rank's work fails."""
    errors: list[OSError] = []

    def attempt() -> None:
        try:
            work()
        except OSError as error:
            errors.append(error)

    def report() -> None:
        if errors:
            raise errors[0]

    seconds = slowest_seconds(attempt, ranks)
    run_together(report, ranks)
    return seconds


def _case(group: Group, spec: VariantSpec, result: StoreResult, ranks: Ranks, began: datetime, cores: int) -> Case:
    """began: UTC. cores: of this host."""
    config = spec.config(group.run)
    machine = environment(ranks, config.train.param_dtype)
    return Case(
        suite=group.suite,
        group=group.name,
        name=spec.name,
        status=result.status,
        reason=result.reason,
        model=config.model.name,
        parameters=result.parameters,
        tokens_per_step=result.tokens_per_step,
        config={key: value for key, value in config.model_dump(mode="json").items() if key != "root"},
        hardware=Hardware(
            device=machine.device,
            nodes=1 if config.cluster.backend == "local" else ranks.place.nodes,
            ranks=ranks.place.world_size,
            threads=machine.threads,
            cores=cores,
            pinned=group.measure.pin,
            memory_bytes=host_memory_bytes(),
            instance_type=config.cluster.instance_type,
        ),
        provenance=provenance(group, began, machine.versions),
        values=result.values,
        samples=result.samples,
        not_measured=result.not_measured,
        store=MeasuredStore(uri=spec.name, kind=_kind(str(config.root)), region=result.region),
    )


def _kind(root: str) -> Literal["folder", "s3", "gs"]:
    bucket = bucket_name(root)
    return "folder" if bucket is None else "gs" if root.startswith("gs://") else "s3"
