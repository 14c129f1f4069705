"""The saves of one generation: begun by the loop, written aside, settled by what all ranks report in each step.

What writes them is imported when the first step is done: people wait for that.
"""

import contextlib
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from convoy.checkpoint.format import DRAFT, Commit, Progress, SamplerPosition
from convoy.checkpoint.save.queue import StatusCounts
from convoy.config.run import config_hash
from convoy.gang.task import Assignment
from convoy.gang.workers.board import Marker
from convoy.job.events.log import EventWriter
from convoy.job.lineage import CommitRef
from convoy.storage import StoreUnavailable
from convoy.training.data import DATA_STATE_KEY
from convoy.training.engines.engine import Engine
from convoy.training.process_groups import Ranks

if TYPE_CHECKING:
    from convoy.checkpoint.save.agreement import StepSettlement
    from convoy.checkpoint.save.driver import Save, SaveDriver
    from convoy.training.checkpointing.save_events import SaveEvents


class SupersededError(RuntimeError):
    """Another run has taken the job over; the text is one line."""


class Saver:
    """Makes the commits of this generation. All ranks make the same calls in the same order."""

    def __init__(
        self,
        assignment: Assignment,
        ranks: Ranks,
        engine: Engine,
        tiers: list[str],
        events: EventWriter,
        parent: CommitRef | None,
        marker: Marker | None = None,
        position: Callable[[], Mapping[str, Any]] | None = None,
        state: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """tiers: URIs of the job on each. parent: the commit that the state came from. marker: for the agent.

        position: of the data, as `TrainingData.position`; None: the number of steps says it. state: what is saved next
        to it; None: weights and the optimizer's state.
        """
        self._assignment = assignment
        self._ranks = ranks
        self._engine = engine
        self._tiers = tiers
        self._events = events
        self._parent = parent
        self._marker = marker or Marker(None, 0)
        self._hooks: list[RemovableHandle] = []
        self._own_state = state
        self._position = position
        self._driver: SaveDriver | None = None
        self._settlement: StepSettlement
        self._observer: SaveEvents
        self._skipped = 0
        self._config_hash = config_hash(assignment.config)

    @property
    def newest_save_step(self) -> int:
        """Newest step that is committed, under way, or was skipped because too much was under way; 0: none."""
        under_way = self._driver.queue.steps if self._driver is not None else []
        return max([self.newest_committed_step or 0, self._skipped, *under_way])

    @property
    def newest_commit(self) -> CommitRef | None:
        """None: there is none yet."""
        return self._driver.newest if self._driver is not None else self._parent

    @property
    def newest_committed_step(self) -> int | None:
        """Step of the newest commit; None: there is none."""
        return None if self.newest_commit is None else self.newest_commit.step

    def start_writer(self) -> None:
        """Have everything ready, so that the first save is as quick as any. After the first update: not before has
        the optimizer all its state. Raises CheckpointError, on all ranks, for a state that cannot be saved."""
        if self._driver is not None:
            return
        from convoy.checkpoint.group import all_gather_objects
        from convoy.checkpoint.messages import WriterSetup
        from convoy.checkpoint.save.agreement import StepSettlement
        from convoy.checkpoint.save.driver import SaveDriver
        from convoy.checkpoint.save.engine import SaveEngine
        from convoy.checkpoint.save.post_commit import distinct_host_names
        from convoy.training.checkpointing.save_events import SaveEvents

        config, place, group = self._assignment.config.checkpoint, self._ranks.place, self._ranks.saving
        self._own_state = self._own_state or self._engine.saved_state()
        setup = WriterSetup(
            tiers=self._tiers,
            store=config.store,
            keep_last=config.retention.keep_last,
            keep_every_steps=config.retention.keep_every_steps,
            bytes_per_second=None if config.write_mb_per_second is None else 1e6 * config.write_mb_per_second,
        )
        names = all_gather_objects((uuid.uuid4().hex[:12], socket.gethostname()), group)
        # Before and after the engine's own hook, in which the update waits for the copy of the state.
        before = self._engine.optimizer.register_step_pre_hook(lambda *_: self._marker.enter("save"))
        engine = SaveEngine(
            setup,
            rank=place.rank,
            world_size=place.world_size,
            group=group,
            device=self._ranks.device,
            optimizer=self._engine.optimizer,
        )
        after = self._engine.optimizer.register_step_pre_hook(lambda *_: self._marker.enter("step"))
        self._hooks = [before, after]
        self._observer = SaveEvents(
            self._events,
            self._tiers,
            parts=place.world_size,
            first=self._ranks.first,
            alert_after=config.alert_after_failures,
            on_commit=self._marker.save_done,
        )
        self._settlement = StepSettlement(
            group, len(self._tiers), away=self._marker.unusable_tiers, passed=self._marker.mark_shared_point
        )
        self._driver = SaveDriver(
            engine,
            self._settlement,
            self._observer,
            tiers=self._tiers,
            session=names[0][0],
            rank=place.rank,
            hosts=distinct_host_names([host for _, host in names], place.host_ranks),
            deadline_seconds=config.deadline_seconds,
            verify=config.verify,
        )
        self._driver.newest = self._parent
        self._settlement.attach(self._driver)
        engine.writer.start()
        engine.plan(self._state())

    def _state(self) -> Mapping[str, Any]:
        """What a save that begins now holds. All ranks call it."""
        assert self._own_state is not None
        state = self._own_state()
        return state if self._position is None else {**state, DATA_STATE_KEY: self._position()}

    def status(self) -> StatusCounts:
        """This rank's status of the save that is being written, with its other work. Never blocks."""
        if self._driver is None:
            none = (0,) * len(self._tiers)
            return StatusCounts(reading_back=none, copying=none)
        return self._settlement.status()

    def settle(self, status_sums: StatusCounts, step: int) -> None:
        """Draw the conclusions from all ranks' status, `step` steps done.

        Raises SupersededError, on all ranks, if the job is another gang's now.
        """
        if self._driver is not None:
            self._observer.step = step
            self._settlement.settle(status_sums)
            self._check_superseded(step)

    def save(self, progress: Progress, *, copy_now: bool = False) -> "Save | None":
        """Begin to save the state after `progress.step` steps; None: it is skipped, since two saves are under way.

        copy_now: the state is copied before this returns, not during the next forward and backward.
        """
        self.start_writer()
        assert self._driver is not None
        if not self._driver.queue.has_free_slot():
            self._skipped = progress.step
            self._observer.on_skipped(progress.step, self._driver.queue.steps)
            return None
        began = time.perf_counter()
        return self._driver.begin(self._draft_commit(progress), self._state(), began=began, copy_now=copy_now)

    def save_last(self, progress: Progress) -> str | None:
        """Save the state after `progress.step` steps, and wait until it is settled: why there is no commit, or None."""
        self._settle_until(1, progress.step)
        save = self.save(progress, copy_now=True)
        self.settle_all(progress.step)
        assert save is not None
        return save.outcome.result(timeout=0).error

    def settle_all(self, step: int) -> None:
        """Wait until every save under way is settled; each has its deadline.

        No commit follows the newest one: what was left out for it is done after what is done for the one before it.
        """
        self._settle_until(0, step)
        if self._driver is not None:
            self._driver.request_left_out_work()

    def close(self, deadline_seconds: float) -> None:
        """End the writer process. What it does between saves, such as copying to other tiers, gets so long to end."""
        if self._driver is None:
            return
        for hook in self._hooks:
            hook.remove()
        with contextlib.suppress(StoreUnavailable):  # how the training ended counts, not what the log missed of it
            self._driver.close(deadline_seconds)

    def _settle_until(self, under_way: int, step: int) -> None:
        """Exchange statuses until at most so many saves are under way."""
        if self._driver is not None:
            self._observer.step = step
            self._driver.wait_until_left(under_way)
            self._check_superseded(step)

    def _check_superseded(self, step: int) -> None:
        if self._driver is not None and self._driver.superseded is not None:
            raise SupersededError(
                f"step {step}: generation {self._assignment.generation} is superseded: another run of the job formed a "
                "newer one; its checkpoints count, this gang's do not"
            )

    def _draft_commit(self, progress: Progress) -> Commit:
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
            config_hash=self._config_hash,
            versions={"torch": torch.__version__},
        )
