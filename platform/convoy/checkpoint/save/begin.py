"""A save as it is begun: all ranks agree on it before, or, in an emergency, those that are left need not."""

import logging
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from convoy.checkpoint.errors import CheckpointError, one_line
from convoy.checkpoint.messages import WriterSetup
from convoy.checkpoint.open_ranks import Ranks
from convoy.checkpoint.save.agreement import Agreed, View
from convoy.checkpoint.save.emergency import save_now
from convoy.checkpoint.save.engine import Checked, Engine
from convoy.checkpoint.save.generation import OwnGeneration
from convoy.checkpoint.save.pending import Pending, begun, skipped
from convoy.checkpoint.save.staging import Staged
from convoy.checkpoint.save.tracker import Saves
from convoy.checkpoint.state.replicas import difference
from convoy.config.json_text import canonical_json
from convoy.storage import Store
from convoy.storage.checksum import crc32c

EMERGENCY_SLOT = 2
"""A buffer of its own: the usual two may be in use."""

log = logging.getLogger("convoy.checkpoint")


class Saving:
    """Of one opened store. All that goes wrong is a CheckpointError."""

    def __init__(
        self,
        engine: Engine,
        saves: Saves,
        generation: OwnGeneration,
        ranks: Ranks,
        stores: Sequence[Store],
        setup: WriterSetup,
        session: str,
        deadline_seconds: float,
    ) -> None:
        """session: random, and the same on all ranks. deadline_seconds: of a save, on each tier."""
        self._engine = engine
        self._saves = saves
        self._generation = generation
        self._ranks = ranks
        self._stores = stores
        self._setup = setup
        self._session = session
        self._deadline = deadline_seconds
        self._emergencies = Counter[tuple[int, ...]]()
        self.skipped = 0
        """Saves that were not begun because two were under way."""

    def begin(self, step: int, state: Mapping[str, Any], may_skip: bool) -> Pending:
        """On all ranks, as `Checkpoints.save` says."""
        if not may_skip:
            self._saves.wait_for_room()
        checked, fits, error = self._checked(state)
        values = {} if checked is None else checked.digests
        own = _shown(error), step, fits, crc32c(canonical_json(values).encode()), self._saves.view()
        told = self._ranks.everyones(own)
        agreed = self._agree(told, error)
        if len({digest for *_, digest, _ in told}) > 1:
            raise CheckpointError(self._difference(values))
        self._generation.begin()
        self._check_step(step, agreed)
        if not agreed.may_add:
            self.skipped += 1
            log.warning("step %d is not saved: two saves are under way", step)
            return skipped(step)
        assert checked is not None
        if not all(fits for _, _, fits, *_ in told):
            with self._saves.lock:
                self._engine.plan(checked)
        return self._stage(step, checked)

    def now(self, step: int, state: Mapping[str, Any], reachable: list[int]) -> Pending:
        """In an emergency, on the reachable ranks, which are in order. It is committed on return."""
        # The ranks cannot agree on a name: it follows from what they all know, whatever became of it on each before.
        self._emergencies[tuple(reachable)] += 1
        count, ranks = self._emergencies[tuple(reachable)], zlib.crc32(repr(reachable).encode())
        if self._ranks.rank not in reachable:
            raise CheckpointError(f"rank {self._ranks.rank} is not among the reachable ranks {reachable}")
        with self._saves.lock:
            if self._ranks.group is None:
                self._generation.begin()
            if self._generation.formed is None:
                raise CheckpointError("an emergency save needs a state that was saved before")
            self._check_newer(step)
            staged = self._engine.stage_apart(EMERGENCY_SLOT, state, reachable)
        commit = save_now(
            self._setup,
            self._stores,
            staged,
            self._generation.draft(step),
            attempt=f"{self._session}-emergency-{count}-{ranks:08x}",
            writer=reachable.index(self._ranks.rank),
            writers=len(reachable),
            deadline_seconds=self._deadline,
        )
        with self._saves.lock:
            self._engine.discard(EMERGENCY_SLOT)
            self._saves.newest = max(self._saves.newest, step)
        return Pending(step, None, lambda _: commit)

    def _stage(self, step: int, checked: Checked) -> Pending:
        copies: list[Staged | None] = []

        def stage(slot: int) -> None:
            self._engine.stage(slot, checked)
            copies.append(self._engine.copy(slot))

        draft = self._generation.draft(step)
        outcome = self._saves.add(step, draft, stage)
        copy = copies[0] if copies else None
        return begun(outcome, draft.ref, copy, self._saves, self._stores, self._deadline)

    def _checked(self, state: Mapping[str, Any]) -> tuple[Checked | None, bool, Exception | None]:
        """The state, and whether the plan is one for it; or why it cannot be saved, which the other ranks must hear."""
        try:
            checked = self._engine.check(state, values=True)
            return checked, self._engine.fits(checked), None
        except Exception as error:  # of a `state_dict()`, whatever it may be
            return None, False, error

    def _agree(self, told: list[tuple[str | None, int, bool, int, View]], own: Exception | None) -> Agreed:
        errors = [f"rank {rank}: {error}" for rank, (error, *_) in enumerate(told) if error]
        if errors:
            raise CheckpointError(errors[0].removeprefix("rank 0: ") if len(told) == 1 else errors[0]) from own
        steps = sorted({step for _, step, *_ in told})
        if len(steps) > 1:
            raise CheckpointError(f"the ranks save different steps: {steps}")
        agreed = self._saves.align([view for *_, view in told])
        if agreed.superseded:
            raise CheckpointError(agreed.superseded)
        return agreed

    def _difference(self, values: Mapping[str, int]) -> str | None:
        """How the ranks' plain values differ; all ranks ask at once."""
        told = dict(enumerate(self._ranks.everyones(dict(values))))
        names = sorted({name for own in told.values() for name in own})
        return difference({rank: {name: own.get(name) for name in names} for rank, own in told.items()})

    def _check_newer(self, step: int) -> None:
        """For an emergency, of what each rank knows by itself.

        A rank may not know yet that this very step was just committed. To save it once more gives that commit.
        """
        parent = self._generation.parent
        if parent is not None and step <= parent.step:
            raise _not_newer(step, max(parent.step, self._saves.newest))
        if step < self._saves.newest:
            raise _not_newer(step, self._saves.newest)

    def _check_step(self, step: int, agreed: Agreed) -> None:
        parent = self._generation.parent
        newest = max(agreed.newest, parent.step if parent else -1)
        if step <= newest:
            raise _not_newer(step, newest)
        if step in agreed.steps:
            raise CheckpointError(f"step {step} is being saved already")


def _shown(error: Exception | None) -> str | None:
    """What the other ranks are told of an error."""
    if error is None or isinstance(error, CheckpointError):
        return None if error is None else str(error)
    return f"{type(error).__name__}: {one_line(error)}"


def _not_newer(step: int, newest: int) -> CheckpointError:
    return CheckpointError(f"step {step}: the newest commit is of step {newest}; rewind to save this one again")
