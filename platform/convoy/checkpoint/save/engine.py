"""Saving on one rank: the state is staged, its writer process writes it, and the status of that is known at each step.

Nothing here decides for the gang: whether a save begins, is tried again or is over follows from the sum of the ranks'
`StatusCounts`, in `SaveQueue`. No call but `plan` waits for another rank, and none for the storage.
"""

import contextlib
import functools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import Commit, PlainValue, TensorInfo
from convoy.checkpoint.messages import SetLayout, WritePart, WriterSetup
from convoy.checkpoint.save.queue import StatusCounts, WriteAttempt
from convoy.checkpoint.save.staging import StagedCopy, Stager
from convoy.checkpoint.save.writer_client import AttemptState, WriterClient
from convoy.checkpoint.state.layout import Layout, Plan, Signature, make_plan, signature
from convoy.checkpoint.state.tree import Tree, flatten
from convoy.checkpoint.state.values import encode
from convoy.config.errors import one_line
from convoy.config.json_text import canonical_json
from convoy.storage.checksum import crc32c

CLOSE_SECONDS = 30.0

log = logging.getLogger("convoy.checkpoint")


@dataclass(frozen=True)
class CheckedState:
    """A state as it is about to be staged."""

    tree: Tree
    values: list[PlainValue]
    """Encoded, so that they are those of this moment; empty where they are neither written nor compared."""

    @functools.cached_property
    def digests(self) -> dict[str, int]:
        """Digest of each value, by name."""
        return {value.name: crc32c(canonical_json(value.value).encode()) for value in self.values}

    @functools.cached_property
    def signature(self) -> Signature:
        return signature(self.tree.tensors)


@dataclass
class StagedPart:
    """The content of a staging buffer."""

    layout: SetLayout
    values: list[PlainValue]
    tensors: dict[str, TensorInfo]
    """The tensors of the whole state as it was planned then."""
    copy: StagedCopy

    def to_request(
        self, draft: Commit, attempt: str, tier: str, *, writer: int, writers: int, deadline_seconds: float
    ) -> WritePart:
        """The request to write it as the part of one writer; writer 0 commits. draft: as in `SaveEngine.submit`."""
        whole = draft.model_copy(update={"attempt": attempt, "tensors": self.tensors})
        return WritePart(
            tier=tier,
            buffer=self.copy.path,
            generation=draft.generation,
            step=draft.step,
            attempt=attempt,
            writer=writer,
            writers=writers,
            values=self.values if writer == 0 else [],
            draft=whole if writer == 0 else None,
            deadline_seconds=deadline_seconds,
        )


class SaveEngine:
    """Stages and writes this rank's part of each save. Not for several threads at once."""

    def __init__(
        self,
        setup: WriterSetup,
        *,
        rank: int = 0,
        world_size: int = 1,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """group: all ranks of the gang, None: this one alone. device: of the state; None: that of the first state.

        optimizer: what only its step changes is copied while training continues, and a hook makes the step wait for
        that; None: `stage` copies all before it returns.
        """
        self.setup = setup
        self._rank = rank
        self._world_size = world_size
        self._group = group
        self._optimizer = optimizer
        self._device = torch.device(device) if device is not None else None
        self._made_stager: Stager | None = None
        self._plan: Plan | None = None
        self._layouts: tuple[Layout, SetLayout] | None = None
        self._slots: dict[int, StagedPart | str] = {}
        self._unsafe: dict[int, list[AttemptState]] = {}
        """Attempts that were settled while their slot was perhaps still being read."""
        self.writer = WriterClient(setup)
        """To be started by a thread that lives as long: its process ends with the thread that started it."""
        self.waited_seconds = 0.0
        """Time in all calls of `join`, those before the optimizer's steps included."""
        self._hook = optimizer.register_step_pre_hook(lambda *_: self.join()) if optimizer is not None else None

    def fits(self, state: CheckedState) -> bool:
        """Whether the plan is one for this state."""
        return self._plan is not None and state.signature == self._plan.signature

    def check(self, state: Mapping[str, Any], *, values: bool | None = None) -> CheckedState:
        """The state by names. Raises CheckpointError for what cannot be saved. values: encode them; None: on rank 0."""
        tree = flatten(state)
        wanted = self._rank == 0 if values is None else values
        encoded = [PlainValue(name=n, value=encode(v, n)) for n, v in tree.values.items()] if wanted else []
        return CheckedState(tree, encoded)

    def plan(self, state: Mapping[str, Any] | CheckedState) -> None:
        """Agree on who writes what. All ranks call it at once, before the first save and when the structure changes.

        Makes the buffers ready, so that the first save is as quick as any. Raises CheckpointError on all ranks alike.
        """
        try:
            tensors = (state if isinstance(state, CheckedState) else self.check(state, values=False)).tree.tensors
            error = None
        except CheckpointError as failure:
            tensors, error = {}, f"rank {self._rank}: {failure}"
        self._plan = make_plan(tensors, self._rank, self._group, error)
        if self._device is None:
            on_device = (tensor.device for tensor in tensors.values() if tensor.device.type != "cpu")
            self._device = next(on_device, torch.device("cpu"))
        if not self._slots:
            with contextlib.suppress(OSError):  # the save that has no memory will say so
                for slot in (0, 1):
                    self._stager.prepare_slot(slot, self._plan.layout)

    def stage(self, slot: int, state: Mapping[str, Any] | CheckedState, copy_now: bool = False) -> StagedCopy | None:
        """Copy the state into the slot, from which nothing is being read: the copy, for waiting until it is whole.
        Never raises: None for a state that cannot be staged; the attempt that is submitted from it fails.

        copy_now: all is copied on return. Otherwise what only the optimizer changes may be copied until `join`.
        """
        try:
            self._make_slot_reusable(slot)
            checked = state if isinstance(state, CheckedState) else self.check(state)
            if self._plan is None or not self.fits(checked):
                raise CheckpointError("the structure of the state has changed since it was planned")
            deferred = () if copy_now else self._deferred_tensors()
            return self._fill_slot(slot, checked, self._plan, self._plan.layout, deferred, self._plan.replicas).copy
        except Exception as error:  # on one rank: the others count this save too
            if not isinstance(error, (OSError, RuntimeError)):  # as torch, a lack of memory or `check` raise
                log.exception("the state could not be staged: its save will fail")
            self._slots[slot] = one_line(error)
            return None

    def join(self) -> None:
        """The state may change when this returns. On CUDA: by work that the current stream is given from now on."""
        if self._made_stager is None:
            return
        began = time.perf_counter()
        self._made_stager.join()
        self.waited_seconds += time.perf_counter() - began

    def submit(self, attempt: WriteAttempt, draft: Commit, deadline_seconds: float) -> None:
        """Have the attempt's slot written, once it is staged; on rank 0 also committed. Returns at once.

        draft: the commit but for its attempt, parts, files, tensors and time; the same on every rank.
        deadline_seconds: for the part, and on rank 0 the commit; what is not there by then is given up.
        """
        slot = self._slots.get(attempt.slot, "nothing was staged")
        state = self.writer.expect(attempt.name, deadline_seconds, coordinator=self._rank == 0)
        if isinstance(slot, str):
            self.writer.fail(state, slot)
            return
        request = slot.to_request(
            draft,
            attempt.name,
            self.setup.tiers[attempt.tier],
            writer=self._rank,
            writers=self._world_size,
            deadline_seconds=deadline_seconds,
        )

        def send() -> None:
            try:
                replicas = slot.copy.digests()
                self.writer.send(state, slot.layout, request.model_copy(update={"replicas": replicas}))
            except Exception as error:  # else nothing would settle the attempt, and the thread that stages would end
                self.writer.fail(state, one_line(error))

        self._stager.call_after(slot.copy, send)

    def status(self, attempt: WriteAttempt | None) -> StatusCounts:
        """This rank's status of an attempt that was submitted. Never blocks."""
        state = self.writer.poll_attempt(attempt.name) if attempt is not None else None
        return StatusCounts() if state is None else state.status

    def awaits_coordinator(self, attempt: WriteAttempt) -> bool:
        """Whether all that is left to be done is the coordinator's, which is another rank."""
        state = self.writer.poll_attempt(attempt.name)
        return state is not None and state.written

    def forget(self, attempt: WriteAttempt) -> None:
        """The attempt is settled, one way or the other."""
        state = self.writer.forget(attempt.name)
        if state is not None and state.buffer_may_be_read:
            self._unsafe.setdefault(attempt.slot, []).append(state)

    def stage_for_survivors(self, slot: int, state: Mapping[str, Any], reachable: Sequence[int]) -> StagedPart:
        """Copy at once what this rank writes when only `reachable` are left. No word passes between ranks.

        Raises CheckpointError if a shard is on none of them, if there was no plan yet, or there is too little memory.
        """
        writer = reachable.index(self._rank)
        checked = self.check(state, values=writer == 0)
        if self._plan is None and self._group is None:
            self.plan(checked)
        if self._plan is None or not self.fits(checked):
            raise CheckpointError("an emergency save needs a state that was saved before, with the same structure")
        self._make_slot_reusable(slot)
        try:
            # Not compared with other ranks' replicas: a state that is not the same everywhere is better than none.
            layout = self._plan.reduced_layout(self._rank, frozenset(reachable))
            staged = self._fill_slot(slot, checked, self._plan, layout, (), ())
        except OSError as error:
            raise CheckpointError(f"staging: {error}") from error
        staged.copy.wait()
        staged.copy.digests()
        return staged

    def discard(self, slot: int) -> None:
        """Give the slot's memory back."""
        self._slots.pop(slot, None)
        self._stager.discard(slot)

    def close(self, deadline_seconds: float = CLOSE_SECONDS) -> None:
        """End the writer process, which ends what it is doing; after so long it is killed."""
        if self._hook is not None:
            self._hook.remove()
        if self._made_stager is not None:
            self._made_stager.finish_tasks()
        self.writer.close(deadline_seconds)
        if self._made_stager is not None:
            self._made_stager.close()
            self._made_stager = None

    @property
    def _stager(self) -> Stager:
        if self._made_stager is None:
            self._made_stager = Stager(self._device or torch.device("cpu"))
        return self._made_stager

    def _make_slot_reusable(self, slot: int) -> None:
        self._slots.pop(slot, None)
        # Bytes that change while a writer reads them would get checksums that are right, of a state that never was.
        self.writer.collect_reports()
        if any(state.buffer_may_be_read for state in self._unsafe.pop(slot, [])):
            self._stager.discard(slot)

    def _fill_slot(
        self,
        slot: int,
        checked: CheckedState,
        plan: Plan,
        layout: Layout,
        deferred: Iterable[torch.Tensor],
        compared: Sequence[str],
    ) -> StagedPart:
        copy = self._stager.stage(slot, layout, checked.tree.tensors, deferred, compared)
        if self._layouts is None or self._layouts[0] is not layout:
            self._layouts = layout, SetLayout(shards=list(layout.shards), file_bytes=list(layout.file_bytes))
        part = self._slots[slot] = StagedPart(self._layouts[1], checked.values, plan.tensors, copy)
        return part

    def _deferred_tensors(self) -> Iterator[torch.Tensor]:
        """The tensors that only the optimizer's step changes."""
        if self._optimizer is None:
            return
        for group in self._optimizer.param_groups:
            yield from group["params"]
        for state in self._optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))
