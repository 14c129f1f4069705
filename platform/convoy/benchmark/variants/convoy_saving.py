"""Convoy's training with a save in each block, and the same saves with nothing else under way: by the trainer's saver.

A save next to steps keeps to the configured pace: how fast the storage is, the second measurement shows. Both go below
a root, the run's or that of another store, to a place that is removed at the end. Commits are not read back: a training
does that between its saves, and here it would reach into another case's block.
"""

import contextlib
import math
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from convoy.benchmark.results import values
from convoy.benchmark.variants.convoy import ConvoyVariant
from convoy.benchmark.variants.ranks import run_together
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import Commit, Progress
from convoy.checkpoint.restore.load import restore
from convoy.checkpoint.save.driver import Save
from convoy.checkpoint.save.queue import StatusCounts
from convoy.config.checkpoint import StoreConfig
from convoy.config.run import RunConfig
from convoy.gang.task import Assignment
from convoy.job.generations import form_generation
from convoy.stats.interval import FEWEST
from convoy.storage import Store, StoreUnavailable, open_store
from convoy.storage.usage import bucket_name, request_counter
from convoy.training.checkpointing.saver import Saver
from convoy.training.data import TrainingData
from convoy.training.measure.machine import max_over_ranks, slowest_seconds
from convoy.training.process_groups import Ranks

ROW_BYTES = 2**14

SAVES_AT_REST = FEWEST
"""After a first one, which starts what writes."""


class Requests(NamedTuple):
    """Requests of all ranks together to a bucket, with their writer processes."""

    puts: float
    gets: float


def new_place(root: str, ranks: Ranks) -> str:
    """A place below a root that nobody uses. All ranks call it, and have the same."""
    box = [uuid.uuid4().hex[:12]]
    dist.broadcast_object_list(box, group=ranks.control, group_src=0)
    return f"{root.rstrip('/')}/benchmarks-checkpoints/{box[0]}"


class SavingVariant(ConvoyVariant):
    """Its second step begins a save, of the state after its first, and so does the first step after each
    `begin_block`."""

    def __init__(self, name: str, config: RunConfig, ranks: Ranks, data: TrainingData, place: str) -> None:
        """place: of its saves, as `new_place` returns it; removed in the end."""
        super().__init__(name, config, ranks, data)
        self.samples: dict[str, list[float]] = defaultdict(list)
        self.requests: dict[str, list[Requests]] = defaultdict(list)
        """Requests of each save and restore at rest but the first, by the names of their samples; of buckets only."""
        self.region: str | None = None
        """Region of the bucket, as far as replies named it."""
        self._ranks = ranks
        self._data = data
        self._place = place
        self._state = self._engine.saved_state()
        self.rest_state: Mapping[str, Any] = {}
        """What was saved at rest; empty before that."""
        try:
            self._store, self._saver = self._open_saver("beside", self._state, config.checkpoint.write_mb_per_second)
        except BaseException:
            super().close()
            raise
        self._due = True
        self._save: Save | None = None
        self._began_at = 0.0  # Unix time
        self._start_seconds = 0.0

    def begin_block(self) -> None:
        """A save is begun in the next step. All ranks call it."""
        self._due = True

    def step(self) -> None:
        if self._due and self.losses:
            self._due = False
            self._began_at = time.time()
            self._save = self._saver.save(Progress(step=len(self.losses)))
        super().step()
        if len(self.losses) == 1:  # not before has the optimizer all its state
            began = time.perf_counter()
            self._saver.start_writer()
            self._start_seconds = time.perf_counter() - began

    def finish_and_record_save(self) -> None:
        """Wait until the save under way is durable, and note how it was. All ranks call it."""
        save, self._save = self._save, None
        if save is None:
            return
        commit = self._finish_save(save, self._saver, len(self.losses))
        stall = max_over_ranks(save.timing.call + save.timing.joined, self._ranks)
        durable = max_over_ranks(commit.created - self._began_at if commit is not None else 0.0, self._ranks)
        if values.FIRST_STALL_SECONDS not in self.values:
            first = stall + max_over_ranks(self._start_seconds, self._ranks)
            self.values |= {values.FIRST_STALL_SECONDS: first, values.SAVED_BYTES: self._commit_bytes(commit)}
        else:
            self.samples[values.STALL].append(stall)
            self.samples[values.DURABLE].append(durable)
        self._delete_commit(commit)

    def time_save_during_training(self, progress: Callable[[], None]) -> None:
        """Train until a save that begins now is durable. All ranks call it. progress: called after each step."""
        self.begin_block()
        while self._save is None or not self._save.outcome.done():
            self.step()
            progress()
        self.finish_and_record_save()

    def time_saves_without_training(self, least_bytes: float, progress: Callable[[], None]) -> None:
        """Save and restore with nothing else under way. All ranks call it, and no step follows.

        least_bytes: that each rank is to write; a smaller state is filled up. progress: called after each save and
        restore: the rank makes progress."""
        self.finish_and_record_save()
        self._close_saver()
        self.rest_state = state = self._padded_state(least_bytes)
        self._store, self._saver = self._open_saver("at-rest", lambda: state, None)
        for number in range(1 + SAVES_AT_REST):
            saved, restored = self._save_and_restore(number + 1, state, progress)
            if number == 0:
                self.values[values.FIRST_SAVE_SECONDS] = saved
                self.requests.clear()
            else:
                self.samples[values.SAVE].append(saved)
                self.samples[values.RESTORE].append(restored)

    def close(self) -> None:
        self._close_saver()
        super().close()
        if self._ranks.first:
            with contextlib.suppress(StoreUnavailable):  # what was measured counts
                delete_place(self._place, self._config.checkpoint.store)

    def _save_status(self) -> StatusCounts:
        return self._saver.status()

    def _after_exchange(self, sums: StatusCounts) -> None:
        self._saver.settle(sums, len(self.losses))

    def _close_saver(self) -> None:
        self._saver.close(self._config.checkpoint.deadline_seconds)

    def _save_and_restore(self, step: int, state: dict[str, Any], progress: Callable[[], None]) -> tuple[float, float]:
        """Seconds of the one and of the other."""
        commits: list[Commit | None] = []

        def save() -> None:
            begun = self._saver.save(Progress(step=step), copy_now=True)
            assert begun is not None
            commits.append(self._finish_save(begun, self._saver, step))

        self._take_requests()
        saved = slowest_seconds(save, self._ranks)
        self._note_requests(values.SAVE)
        (commit,) = commits
        self.values[values.REST_BYTES] = self._commit_bytes(commit)
        progress()
        run_together(self._drop_caches, self._ranks)
        self._take_requests()
        candidates = [(commit.ref, [0])] if commit is not None else None
        restored = slowest_seconds(
            lambda: restore([self._store], candidates, state, group=self._ranks.saving), self._ranks
        )
        self._note_requests(values.RESTORE)
        progress()
        self._delete_commit(commit)
        return saved, restored

    def _finish_save(self, save: Save, saver: Saver, step: int) -> Commit | None:
        """The commit of a save, once it is durable, on rank 0. Raises CheckpointError if there is none."""
        saver.settle_all(step)
        outcome = save.outcome.result(timeout=0)
        if outcome.error is not None:
            raise CheckpointError(f"{outcome.failure_text}: {outcome.error}")
        return outcome.commit if self._ranks.first else None

    def _note_requests(self, name: str) -> None:
        """Note what all ranks asked of the bucket since `_take_requests`; a folder is asked nothing."""
        if bucket_name(self._place) is None:
            return
        self._saver.status()  # takes in what its writer process has reported
        both = torch.tensor(self._take_requests(), dtype=torch.float64)
        dist.all_reduce(both, group=self._ranks.control)
        self.requests[name].append(Requests(*both.tolist()))

    def _take_requests(self) -> Requests:
        """This rank's requests to the bucket since the last call."""
        counted = [each for each in request_counter().take() if each.bucket == bucket_name(self._place)]
        self.region = next((each.region for each in counted if each.region), self.region)
        return Requests(sum(each.puts for each in counted), sum(each.gets for each in counted))

    def _commit_bytes(self, commit: Commit | None) -> float:
        """On all ranks those of rank 0's commit."""
        return max_over_ranks(float(commit.bytes) if commit is not None else 0.0, self._ranks)

    def _open_saver(self, name: str, state: Callable[[], Mapping[str, Any]], pace: float | None) -> tuple[Store, Saver]:
        """A job at a place below ours. pace: in 10^6 bytes per second and rank; None: as fast as the storage takes."""
        place, data, ranks = f"{self._place}/{name}", self._data, self._ranks
        store = open_store(place, self._config.checkpoint.store)

        def form() -> int:
            if not ranks.first:
                return 0
            formed = form_generation(
                store,
                formation=name,
                nodes=ranks.place.nodes,
                world_size=ranks.place.world_size,
                config_hash="",
                rendezvous="",
            )
            return formed.generation

        generation = [run_together(form, ranks)]
        dist.broadcast_object_list(generation, group=ranks.control, group_src=0)
        changes = {"write_mb_per_second": pace, "verify": False}
        checkpoint = self._config.checkpoint.model_copy(update=changes)
        assignment = Assignment(
            config=self._config.model_copy(update={"checkpoint": checkpoint}),
            job=name,
            job_uri=place,
            tiers=[place],
            root=str(self._config.root),
            data_id=data.data_id,
            fingerprint=data.fingerprint,
            generation=generation[0],
            parent=None,
            place=ranks.place,
            master_host="",
            master_port=0,
            reason_path="",
        )
        return store, Saver(assignment, ranks, self._engine, [place], self._events, None, state=state)

    def _padded_state(self, least_bytes: float) -> dict[str, Any]:
        """The state, and so many random bytes of each rank that it writes at least `least_bytes`. All ranks call it.

        They have rows as long as a large weight's: as one dimension of single bytes they were restored 30 times slower.
        """
        size = self._ranks.place.world_size
        lacking = math.ceil(least_bytes - self.values[values.SAVED_BYTES] / size)
        if lacking <= 0:
            return self._state()
        device = self._ranks.device
        own = torch.randint(256, (math.ceil(lacking / ROW_BYTES), ROW_BYTES), dtype=torch.uint8, device=device)
        mesh = init_device_mesh(device.type, (size,))
        return {**self._state(), "filling": DTensor.from_local(own, mesh, [Shard(0)])}

    def _drop_caches(self) -> None:
        """One rank of each host, for all of it: what is read next comes from the storage."""
        if self._ranks.place.host_rank == 0:
            for name in self._store.sizes("shards/"):
                self._store.drop_cache(name)

    def _delete_commit(self, commit: Commit | None) -> None:
        """Remove it, so that a measurement needs no more room than one save. All ranks call it, and none returns
        before."""

        def delete() -> None:
            if commit is not None:
                for name in (commit.ref.name, *self._store.sizes(commit.prefix)):
                    self._store.delete(name)

        run_together(delete, self._ranks)


def delete_place(place: str, config: StoreConfig) -> None:
    """Remove everything below a place of `new_place`. Raises StoreUnavailable."""
    if "://" not in place:
        shutil.rmtree(place, ignore_errors=True)
        return
    store = open_store(place, config)
    for name in store.sizes(""):
        store.delete(name)
