"""The saves of one generation: begun by the loop, written aside, settled by what all ranks say in each step.

What writes them is imported when the first step is done: people wait for that.
"""

import contextlib
import socket
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.utils.hooks import RemovableHandle

from convoy.checkpoint.format import DRAFT, Commit, Progress, SamplerPosition
from convoy.checkpoint.save.queue import Attempt, SaveQueue, SaveStatus
from convoy.config.run import config_hash
from convoy.gang.assignment import Assignment
from convoy.gang.workers.board import Marker
from convoy.job.events.log import EventWriter
from convoy.job.lineage import CommitRef
from convoy.storage import StoreUnavailable
from convoy.training.build import Trained
from convoy.training.process_groups import Ranks

if TYPE_CHECKING:
    from convoy.checkpoint.save.engine import Engine
    from convoy.checkpoint.save.post_commit import Busy
    from convoy.checkpoint.state.tensors import TensorsOf
    from convoy.training.checkpointing.save_events import SaveLog, Timing

FIRST_PAUSE_SECONDS = 0.002
LONGEST_PAUSE_SECONDS = 0.1
"""Between two exchanges while the gang waits for nothing but its last save."""


class SupersededError(RuntimeError):
    """Another run has taken the job over; the text is one line."""


class Saver:
    """Makes the commits of this generation. All ranks make the same calls in the same order."""

    def __init__(
        self,
        assignment: Assignment,
        ranks: Ranks,
        trained: Trained,
        tiers: list[str],
        events: EventWriter,
        parent: CommitRef | None,
        marker: Marker | None = None,
    ) -> None:
        """tiers: URIs of the job on each. parent: the commit that the state came from. marker: tells the agent."""
        self._assignment = assignment
        self._ranks = ranks
        self._trained = trained
        self._tiers = tiers
        self._events = events
        self._parent = parent
        self._marker = marker or Marker(None, 0)
        self._hooks: list[RemovableHandle] = []
        self._queue = SaveQueue(len(tiers), "")
        self._engine: Engine | None = None
        self._log: SaveLog
        self._state: TensorsOf
        self._drafts: dict[int, Commit] = {}
        self._timings: dict[int, Timing] = {}
        self._hosts: list[str] = []
        self._commits = 0
        self._left: tuple[Attempt, Busy] | None = None
        """The newest commit, and where some rank was busy with an earlier one, so that this one was left out."""
        self._waits = False  # for saves, and does not train meanwhile
        self._skipped = 0
        self._last_error = ""
        self.newest_commit = parent
        """None: there is none yet."""

    @property
    def newest(self) -> int:
        """Newest step that is committed, under way, or was skipped because too much was under way; 0: none."""
        return max([self.committed or 0, self._skipped, *self._queue.steps])

    @property
    def committed(self) -> int | None:
        """Step of the newest commit; None: there is none."""
        return None if self.newest_commit is None else self.newest_commit.step

    def start(self) -> None:
        """Have everything ready, so that the first save is as quick as any. After the first update: not before has
        the optimizer all its state. Raises CheckpointError, on all ranks, for a state that cannot be saved."""
        if self._engine is not None:
            return
        from convoy.checkpoint.messages import WriterSetup
        from convoy.checkpoint.save.engine import Engine
        from convoy.checkpoint.state.tensors import TensorsOf
        from convoy.training.checkpointing.save_events import SaveLog

        config, place = self._assignment.config.checkpoint, self._ranks.place
        self._log = SaveLog(self._events, self._tiers, place.world_size, self._ranks.first, config.alert_after_failures)
        self._state = TensorsOf(self._trained.module, self._trained.optimizer, self._trained.rows)
        setup = WriterSetup(
            tiers=self._tiers,
            store=config.store,
            keep_last=config.retention.keep_last,
            keep_every_steps=config.retention.keep_every_steps,
            bytes_per_second=None if config.write_mb_per_second is None else 1e6 * config.write_mb_per_second,
        )
        self._queue = SaveQueue(len(self._tiers), self._session())
        self._hosts = self._host_names()
        # Before and after the engine's own hook, in which the update waits for the copy of the state.
        before = self._trained.optimizer.register_step_pre_hook(lambda *_: self._marker.enter("save"))
        self._engine = Engine(
            setup,
            rank=place.rank,
            world_size=place.world_size,
            group=self._ranks.saving,
            device=self._ranks.device,
            optimizer=self._trained.optimizer,
        )
        after = self._trained.optimizer.register_step_pre_hook(lambda *_: self._marker.enter("step"))
        self._hooks = [before, after]
        self._engine.start()
        self._engine.plan(self._state())

    def status(self) -> SaveStatus:
        """What this rank knows of the save that is being written, and what it does besides; never blocks."""
        if self._engine is None:
            return SaveStatus(reading_back=self._each(()), copying=self._each(()))
        known, busy = self._engine.status(self._queue.under_way), self._engine.busy()
        away = self._marker.away()
        told = replace(known, reading_back=self._each(busy.reading_back), copying=self._each(busy.copying))
        return replace(told, away=self._each(away)) if away else told

    def settle(self, sums: SaveStatus, step: int) -> None:
        """Draw the conclusions from all ranks' status, `step` steps done.

        Raises SupersededError, on all ranks, if the job is another gang's now.
        """
        if self._engine is None:
            return
        self._log.take(self._engine.reports())
        self._note_staged()
        settled = self._queue.settle(sums)
        if settled.superseded:
            raise SupersededError(
                f"step {step}: generation {self._assignment.generation} is superseded: another run of the job formed a "
                "newer one; its checkpoints count, this gang's do not"
            )
        if settled.committed is not None:
            self._on_commit(settled.committed, sums)
        lost = settled.moved or settled.given_up
        if lost is not None:
            self._on_failure(lost, settled.start if settled.moved else None, step)
        if settled.start is not None:
            self._submit(settled.start)
        if self._queue.under_way is None:  # else a newer commit is to be expected, which counts for more
            self._make_up(sums)

    def save(self, progress: Progress, *, now: bool = False) -> None:
        """Begin to save the state after `progress.step` steps; skip it if two saves are under way.

        now: the state is copied before this returns, not beside the next forward and backward.
        """
        self.start()
        assert self._engine is not None
        if not self._queue.may_add():
            self._skipped = progress.step
            self._log.skipped(progress.step, self._queue.steps)
            return
        from convoy.training.checkpointing.save_events import Timing

        slot = self._queue.free_slot()
        timing = self._timings[progress.step] = Timing(time.perf_counter(), self._engine.waited_seconds, slot)
        self._drafts[progress.step] = self._draft(progress)
        self._engine.stage(slot, self._state(), now=now)
        begun = self._queue.add(progress.step, tier=None)
        if begun is not None:
            self._submit(begun)
        else:
            self._hurry()
        timing.call = timing.since()

    def save_last(self, progress: Progress) -> str | None:
        """Save the state after `progress.step` steps, and wait until it is settled: why there is no commit, or None."""
        while not self._queue.may_add():
            self._exchange(progress.step, until=1)
        self.save(progress, now=True)
        self.finish(progress.step)
        return None if self.committed == progress.step else self._last_error

    def finish(self, step: int) -> None:
        """Wait until every save under way is settled; each has its deadline.

        No commit follows the newest one, so that its own chores come after those of the one before it.
        """
        self._exchange(step, until=0)
        self._make_up(SaveStatus())

    def close(self, deadline_seconds: float) -> None:
        """End the writer process. What it does between saves, such as copying to other tiers, gets so long to end."""
        if self._engine is None:
            return
        for hook in self._hooks:
            hook.remove()
        self._engine.close(deadline_seconds)
        with contextlib.suppress(StoreUnavailable):  # how the training ended counts, not what the log missed of it
            self._log.take(self._engine.reports())

    def _exchange(self, step: int, until: int) -> None:
        """Exchange statuses until at most `until` saves are under way."""
        pauses, self._waits = _pauses(), True
        self._hurry()
        while len(self._queue.steps) > until:
            self._marker.passed()
            sums = torch.tensor(self.status().values())
            dist.all_reduce(sums, group=self._ranks.saving)
            before = self._queue.under_way
            self.settle(SaveStatus.of(sums.tolist()), step)
            if self._queue.under_way == before:
                time.sleep(next(pauses))
            else:
                pauses = _pauses()
        self._waits = False

    def _submit(self, attempt: Attempt) -> None:
        assert self._engine is not None
        self._engine.submit(attempt, self._drafts[attempt.step], self._assignment.config.checkpoint.deadline_seconds)
        if self._waits or len(self._queue.steps) > 1:
            self._engine.hurry(attempt)

    def _hurry(self) -> None:
        """Somebody waits for the save under way: the end of the training, or the next save."""
        if self._engine is not None and (head := self._queue.under_way) is not None:
            self._engine.hurry(head)

    def _on_commit(self, attempt: Attempt, sums: SaveStatus) -> None:
        """On a tier where some rank is still at an earlier commit, no rank does anything for this one."""
        from convoy.checkpoint.save.post_commit import Busy

        assert self._engine is not None
        self._engine.forget(attempt)
        self._log.committed(attempt, self._timings[attempt.step])
        self._marker.saved(self._timings[attempt.step].since())
        self._done(attempt.step)
        self.newest_commit = CommitRef(generation=self._assignment.generation, step=attempt.step)
        busy = Busy.told(sums).at(attempt.tier)
        self._ask(attempt, busy)
        self._left = (attempt, busy) if busy != Busy() else None
        self._commits += 1

    def _make_up(self, sums: SaveStatus) -> None:
        """Have done what was left out for the newest commit, where no rank is busy any more."""
        if self._left is None:
            return
        from convoy.checkpoint.save.post_commit import Busy

        attempt, left = self._left
        free = left - Busy.told(sums)
        if free != Busy():
            self._ask(attempt, free.turned(len(self._tiers)))
            self._left = (attempt, left - free) if left != free else None

    def _on_failure(self, attempt: Attempt, retried: Attempt | None, step: int) -> None:
        assert self._engine is not None
        self._engine.forget(attempt)
        error = self._last_error = self._agreed_error(attempt)
        self._log.failed(attempt, error, retried)
        if retried is None:
            self._done(attempt.step)
            self._log.in_a_row(self._queue.failures, step, self.committed, error)

    def _agreed_error(self, attempt: Attempt) -> str:
        """The lowest rank's that knows one. A gather of text, but only when a save has failed."""
        errors: list[str | None] = [None] * self._ranks.place.world_size
        dist.all_gather_object(errors, self._log.error_of(attempt), group=self._ranks.saving)
        told = next((f"rank {rank}: {error}" for rank, error in enumerate(errors) if error), "")
        return told or ("the tier is full or out of reach" if self._queue.away(attempt.tier) else "no rank knows why")

    def _done(self, step: int) -> None:
        self._drafts.pop(step, None)
        self._timings.pop(step, None)

    def _note_staged(self) -> None:
        """Before the slot is used again."""
        assert self._engine is not None
        for timing in self._timings.values():
            at = self._engine.staged_at(timing.slot) if timing.staged is None else None
            if at is not None:
                timing.staged, timing.joined = at - timing.began, self._engine.waited_seconds - timing.waited

    def _ask(self, attempt: Attempt, busy: "Busy") -> None:
        """Each part is read back by a rank of another host; where all ranks share one, from the storage itself."""
        from convoy.checkpoint.save.post_commit import chores

        assert self._engine is not None
        place, config = self._ranks.place, self._assignment.config.checkpoint
        ref = CommitRef(generation=self._assignment.generation, step=attempt.step)
        asked = chores(ref, attempt.tier, self._tiers, place.rank, self._hosts, self._commits, config.verify, busy)
        self._engine.after_commit(asked)

    def _each(self, busy: Collection[int]) -> tuple[int, ...]:
        """1 for each tier that is among them."""
        return tuple(int(tier in busy) for tier in range(len(self._tiers)))

    def _session(self) -> str:
        box = [uuid.uuid4().hex[:12]]
        dist.broadcast_object_list(box, group=self._ranks.saving, group_src=0)
        return box[0]

    def _host_names(self) -> list[str]:
        from convoy.checkpoint.save.post_commit import host_names

        names = [""] * self._ranks.place.world_size
        dist.all_gather_object(names, socket.gethostname(), group=self._ranks.saving)
        return host_names(names, self._ranks.place.host_ranks)

    def _draft(self, progress: Progress) -> Commit:
        config, mesh = self._assignment.config, self._ranks.mesh
        return Commit(
            job=self._assignment.job,
            generation=self._assignment.generation,
            step=progress.step,
            attempt=DRAFT,
            parent=self._parent,
            world_size=self._ranks.place.world_size,
            mesh=dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True)),
            progress=progress,
            sampler=SamplerPosition(seed=config.train.seed, next_sample=progress.step * config.train.global_batch),
            rng={"scheme": "keyed by seed, step and global micro batch", "seed": config.train.seed},
            fingerprint=self._assignment.fingerprint,
            data_id=self._assignment.data_id,
            config_hash=config_hash(config),
            versions={"torch": torch.__version__},
        )


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(LONGEST_PAUSE_SECONDS, 1.5 * pause)
