"""Convoy's training with a save in each block, and the same saves with nothing else going on.

What is written beside steps is held back by the configured pace: how fast the storage is, the second measurement tells.
Both go below the run's root, to a place that is removed at the end. Commits are not read back: a training does that
between its saves, and here it would go on into another case's block.
"""

import contextlib
import math
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from convoy.benchmark.results.samples import DURABLE, RESTORE, SAVE, STALL
from convoy.benchmark.results.values import FIRST_SAVE_SECONDS, FIRST_STALL_SECONDS, REST_BYTES, SAVED_BYTES
from convoy.benchmark.rounds import Variant
from convoy.benchmark.variants.convoy import Ours
from convoy.checkpoint.api import Checkpoints, Pending
from convoy.checkpoint.format import Commit
from convoy.checkpoint.state.tensors import TensorsOf
from convoy.config.benchmark import PredictConfig
from convoy.config.checkpoint import StoreConfig
from convoy.config.run import RunConfig
from convoy.stats.interval import FEWEST
from convoy.storage import Store, StoreUnavailable, open_store
from convoy.training.batches import Data
from convoy.training.process_groups import Ranks

T = TypeVar("T")

ROW_BYTES = 2**14

SAVES_AT_REST = FEWEST
"""After a first one, which starts what writes."""


@dataclass
class Measured:
    """The same on all ranks."""

    samples: dict[str, list[float]] = field(default_factory=lambda: {STALL: [], DURABLE: [], SAVE: [], RESTORE: []})
    values: dict[str, float] = field(default_factory=dict)


@dataclass
class _Begun:
    """A save that is under way, on this rank."""

    pending: Pending
    at: float
    """Unix time."""
    call: float
    """Seconds of the call that began it."""
    waited: float
    """Seconds that updates had waited for copies before."""


class Saving(Ours):
    """Its second step begins a save, of the state after its first, and so does the first step after each
    `begin_block`."""

    def __init__(self, name: str, config: RunConfig, ranks: Ranks, data: Data) -> None:
        super().__init__(name, config, ranks, data)
        self.measured = Measured()
        self._ranks = ranks
        box = [uuid.uuid4().hex[:12]]
        dist.broadcast_object_list(box, group=ranks.control, group_src=0)
        self._place = f"{str(config.root).rstrip('/')}/benchmarks-checkpoints/{box[0]}"
        self._state = TensorsOf(self._trained.module, self._trained.optimizer)
        pace = config.checkpoint.write_mb_per_second
        self._store, self._checkpoints = self._opened("beside", self._trained.optimizer, pace)
        self._due = True
        self._begun: _Begun | None = None

    def begin_block(self) -> None:
        """A save is begun in the next step. All ranks call it."""
        self._due = True

    def step(self) -> None:
        if self._due and self.losses:
            self._due = False
            at, began = time.time(), time.perf_counter()
            pending = self._checkpoints.save(len(self.losses), self._state())
            self._begun = _Begun(pending, at, time.perf_counter() - began, self._checkpoints.waited_seconds)
        super().step()

    def settle(self) -> None:
        """Wait until the save under way is durable, and note how it was. All ranks call it."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        commit = begun.pending.wait()
        stall = self._slowest(begun.call + self._checkpoints.waited_seconds - begun.waited)
        durable = self._slowest(commit.created - begun.at if self._ranks.first else 0.0)  # rank 0 makes the commit
        if FIRST_STALL_SECONDS not in self.measured.values:
            self.measured.values |= {FIRST_STALL_SECONDS: stall, SAVED_BYTES: float(commit.bytes)}
        else:
            self.measured.samples[STALL].append(stall)
            self.measured.samples[DURABLE].append(durable)
        self._forget(commit)

    def measure_at_rest(self, least_bytes: float, passed: Callable[[], None]) -> None:
        """Save and restore with nothing else going on. All ranks call it, and no step follows.

        least_bytes: that each rank is to write; a smaller state is filled up. passed: called after each save and
        restore: the rank goes on."""
        self.settle()
        self._checkpoints.close()
        self._store, self._checkpoints = self._opened("at-rest", None, None)
        state = self._filled_up(least_bytes)
        for number in range(1 + SAVES_AT_REST):
            saved, restored = self._save_and_restore(number + 1, state, passed)
            if number == 0:
                self.measured.values[FIRST_SAVE_SECONDS] = saved
            else:
                self.measured.samples[SAVE].append(saved)
                self.measured.samples[RESTORE].append(restored)

    def close(self) -> None:
        super().close()
        self._checkpoints.close()
        if self._ranks.first:
            with contextlib.suppress(StoreUnavailable):  # what was measured counts
                _remove(self._place, self._config.checkpoint.store)

    def _save_and_restore(self, step: int, state: dict[str, Any], passed: Callable[[], None]) -> tuple[float, float]:
        """Seconds of the one and of the other."""
        saved, commit = self._timed(lambda: self._checkpoints.save(step, state).wait())
        self.measured.values[REST_BYTES] = float(commit.bytes)
        passed()
        self._drop_caches()
        restored, _ = self._timed(lambda: self._checkpoints.restore(state))
        passed()
        self._forget(commit)
        return saved, restored

    def _opened(
        self, name: str, optimizer: torch.optim.Optimizer | None, pace: float | None
    ) -> tuple[Store, Checkpoints]:
        """A place below ours. pace: in 10^6 bytes per second and rank; None: as fast as the storage takes it."""
        config, place = self._config.checkpoint, f"{self._place}/{name}"
        opened = Checkpoints(
            place,
            optimizer=optimizer,
            deadline_seconds=config.deadline_seconds,
            verify=False,
            store=config.store,
            write_mb_per_second=pace,
        )
        return open_store(place, config.store), opened

    def _filled_up(self, least_bytes: float) -> dict[str, Any]:
        """The state, and so many random bytes of each rank that it writes at least `least_bytes`.

        They have rows as long as a large weight's: as one dimension of single bytes they were restored 30 times slower.
        """
        size = self._ranks.place.world_size
        lacking = math.ceil(least_bytes - self.measured.values[SAVED_BYTES] / size)
        if lacking <= 0:
            return self._state()
        device = self._ranks.device
        own = torch.randint(256, (math.ceil(lacking / ROW_BYTES), ROW_BYTES), dtype=torch.uint8, device=device)
        mesh = init_device_mesh(device.type, (size,))
        return {**self._state(), "filling": DTensor.from_local(own, mesh, [Shard(0)])}

    def _timed(self, work: Callable[[], T]) -> tuple[float, T]:
        """Seconds that the slowest rank takes, with all beginning together, and what it gave here."""
        dist.barrier(group=self._ranks.control)
        began = time.perf_counter()
        given = work()
        return self._slowest(time.perf_counter() - began), given

    def _slowest(self, seconds: float) -> float:
        found = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._ranks.control)
        return float(found)

    def _drop_caches(self) -> None:
        """One rank of each host, for all of it: what is read next comes from the storage."""
        if self._ranks.place.host_rank == 0:
            for name in self._store.sizes("shards/"):
                self._store.drop_cache(name)

    def _forget(self, commit: Commit) -> None:
        """Remove it, so that a measurement needs no more room than one save. All ranks call it, and none goes on
        before."""
        if self._ranks.first:
            for name in (commit.ref.name, *self._store.sizes(commit.shards)):
                self._store.delete(name)
        dist.barrier(group=self._ranks.control)


def before_block(variants: Sequence[Variant]) -> Callable[[Variant], None]:
    """To be called with a variant before each of its blocks: no save of the block before is under way any more."""
    saving = [variant for variant in variants if isinstance(variant, Saving)]

    def begin(variant: Variant) -> None:
        for each in saving:
            each.settle()
        if isinstance(variant, Saving):
            variant.begin_block()

    return begin


def measured_at_rest(
    variants: Sequence[Variant], predict: PredictConfig | None, passed: Callable[[], None]
) -> dict[str, Measured]:
    """When all blocks are over: what saves and restores showed, by the variant's name. All ranks call it."""
    least = 1e6 * predict.least_mb_per_writer if predict is not None else 0.0
    found = {}
    for variant in variants:
        if isinstance(variant, Saving):
            variant.measure_at_rest(least, passed)
            found[variant.name] = variant.measured
    return found


def _remove(place: str, config: StoreConfig) -> None:
    if "://" not in place:
        shutil.rmtree(place, ignore_errors=True)
        return
    store = open_store(place, config)
    for name in store.sizes(""):
        store.delete(name)
