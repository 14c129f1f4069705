"""A save of an opened store as it is begun: all ranks agree before it or, in an emergency, those left do not."""

import contextlib
import logging
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from convoy.checkpoint.commits import CommitGoneError, read_commit
from convoy.checkpoint.errors import CheckpointError, as_checkpoint_errors
from convoy.checkpoint.format import Commit
from convoy.checkpoint.group import StoreRanks
from convoy.checkpoint.save.commit_lookup import in_thread
from convoy.checkpoint.save.driver import Save, SaveDriver
from convoy.checkpoint.save.emergency import emergency_save
from convoy.checkpoint.save.engine import CheckedState
from convoy.checkpoint.save.generation import OwnGeneration
from convoy.checkpoint.save.next_save import NO_COMMIT, NextSaveAgreement, OutstandingSaves, RankSaves
from convoy.checkpoint.save.staging import StagedCopy
from convoy.checkpoint.state.replicas import describe_difference
from convoy.config.errors import one_line
from convoy.config.json_text import canonical_json
from convoy.job.lineage import CommitRef
from convoy.storage import Store
from convoy.storage.checksum import crc32c

EMERGENCY_SLOT = 2
"""A buffer of its own: the usual two may be in use."""

log = logging.getLogger("convoy.checkpoint")


class Pending:
    """A save that was begun."""

    def __init__(
        self, step: int, get: Callable[[float | None], Commit], copy: StagedCopy | None = None, *, skipped: bool = False
    ) -> None:
        self.step = step
        self.skipped = skipped
        """Two saves were under way already: this one was not begun."""
        self._copy = copy
        self._result = get

    def staged(self) -> None:
        """Return when the state may be changed by other things than the optimizer's step, which waits by itself."""
        if self._copy is not None:
            self._copy.wait()

    def wait(self, timeout_seconds: float | None = None) -> Commit:
        """The commit, once it is durable. Raises CheckpointError, which says why there is none, and TimeoutError.

        A store that hangs is waited for until the save's deadline, on each tier. A rank that cannot learn from it what
        became of the save raises that the step may not be saved: the coordinator, rank 0, alone knows then.
        """
        return self._result(timeout_seconds)


@dataclass(eq=False)
class StoreSaves:
    """The saves of one opened store. All that goes wrong is a CheckpointError."""

    driver: SaveDriver
    agreement: NextSaveAgreement
    generation: OwnGeneration
    ranks: StoreRanks
    stores: Sequence[Store]
    _emergencies: Counter[tuple[int, ...]] = field(default_factory=Counter)
    skipped: int = 0
    """Saves that were not begun because two were under way."""

    def begin(self, step: int, state: Mapping[str, Any], may_skip: bool) -> Pending:
        """Begin a save as `Checkpoints.save` describes it. All ranks call it."""
        if not may_skip:
            self.driver.wait_until_left(1)
        checked, fits, error = self._check_state_and_plan(state)
        values = {} if checked is None else checked.digests
        own = _error_text(error), step, fits, crc32c(canonical_json(values).encode()), self.agreement.report_saves()
        reports = self.ranks.all_gather(own)
        agreed = self._check_and_combine(reports, error)
        if len({digest for *_, digest, _ in reports}) > 1:
            raise CheckpointError(self._gather_difference(values))
        self.generation.form_if_needed()
        self._check_agreed_step(step, agreed)
        if not agreed.has_free_slot:
            self.skipped += 1
            log.warning("step %d is not saved: two saves are under way", step)
            return _skipped_save(step)
        assert checked is not None
        if not all(fits for _, _, fits, *_ in reports):
            with self.driver.lock:
                self.driver.engine.plan(checked)
        draft = self.generation.draft(step)
        save = self.driver.begin(draft, checked, tier=agreed.next_tier, busy=agreed.busy)
        return pending_save(save, self.driver, self.stores)

    def save_emergency(self, step: int, state: Mapping[str, Any], reachable: list[int]) -> Pending:
        """Save in an emergency, on the reachable ranks, which are in order. It is committed on return."""
        # The ranks cannot agree on a name: it follows from what they all know, whatever became of it on each before.
        self._emergencies[tuple(reachable)] += 1
        count, ranks = self._emergencies[tuple(reachable)], zlib.crc32(repr(reachable).encode())
        if self.ranks.rank not in reachable:
            raise CheckpointError(f"rank {self.ranks.rank} is not among the reachable ranks {reachable}")
        with self.driver.lock:
            if self.ranks.group is None:
                self.generation.form_if_needed()
            if self.generation.formed is None:
                raise CheckpointError("an emergency save needs a state that was saved before")
            self._check_emergency_step(step)
            staged = self.driver.engine.stage_for_survivors(EMERGENCY_SLOT, state, reachable)
        commit = emergency_save(
            self.driver.engine.setup,
            self.stores,
            staged,
            self.generation.draft(step),
            attempt=f"{self.driver.session}-emergency-{count}-{ranks:08x}",
            writer=reachable.index(self.ranks.rank),
            writers=len(reachable),
            deadline_seconds=self.driver.deadline_seconds,
        )
        with self.driver.lock:
            self.driver.engine.discard(EMERGENCY_SLOT)
            self.driver.note_commit(commit.ref)
        return Pending(step, lambda _: commit)

    def _check_state_and_plan(self, state: Mapping[str, Any]) -> tuple[CheckedState | None, bool, Exception | None]:
        """The state, and whether the plan is one for it; or why it cannot be saved, which the other ranks must hear."""
        try:
            checked = self.driver.engine.check(state, values=True)
            return checked, self.driver.engine.fits(checked), None
        except Exception as error:  # of a `state_dict()`, whatever it may be
            return None, False, error

    def _check_and_combine(
        self, reports: list[tuple[str | None, int, bool, int, RankSaves]], own: Exception | None
    ) -> OutstandingSaves:
        errors = [f"rank {rank}: {error}" for rank, (error, *_) in enumerate(reports) if error]
        if errors:
            raise CheckpointError(errors[0].removeprefix("rank 0: ") if len(reports) == 1 else errors[0]) from own
        steps = sorted({step for _, step, *_ in reports})
        if len(steps) > 1:
            raise CheckpointError(f"the ranks save different steps: {steps}")
        agreed = self.agreement.align([view for *_, view in reports])
        if agreed.superseded:
            raise CheckpointError(agreed.superseded)
        return agreed

    def _gather_difference(self, values: Mapping[str, int]) -> str | None:
        """How the ranks' plain values differ. All of them call it at once."""
        digests = dict(enumerate(self.ranks.all_gather(dict(values))))
        names = sorted({name for own in digests.values() for name in own})
        return describe_difference({rank: {name: own.get(name) for name in names} for rank, own in digests.items()})

    def _check_emergency_step(self, step: int) -> None:
        """The check in an emergency, by what each rank knows by itself.

        A rank may not know yet that this very step was just committed. To save it once more gives that commit.
        """
        parent = self.generation.parent
        newest = self.driver.newest.step if self.driver.newest else NO_COMMIT
        if parent is not None and step <= parent.step:
            raise _not_newer_error(step, max(parent.step, newest))
        if step < newest:
            raise _not_newer_error(step, newest)

    def _check_agreed_step(self, step: int, agreed: OutstandingSaves) -> None:
        parent = self.generation.parent
        newest = max(agreed.newest, parent.step if parent else NO_COMMIT)
        if step <= newest:
            raise _not_newer_error(step, newest)
        if step in agreed.steps:
            raise CheckpointError(f"step {step} is being saved already")


def pending_save(save: Save, driver: SaveDriver, stores: Sequence[Store]) -> Pending:
    """A save of the driver. Its deadline is also that for looking its commit up, where only another rank has it."""
    ref = save.draft.ref

    def result(timeout_seconds: float | None) -> Commit:
        began = time.monotonic()
        with driver.hurry_while_waiting():
            settled = save.outcome.result(timeout_seconds)
        if settled.error is not None:
            raise CheckpointError(f"{settled.failure_text}: {settled.error}")
        if settled.commit is not None:
            return settled.commit
        last = stores[settled.attempt.tier]
        places = [last, *(store for store in stores if store is not last)]
        if timeout_seconds is not None:
            return _look_up_commit(ref, places, max(0.0, began + timeout_seconds - time.monotonic()))
        try:
            return _look_up_commit(ref, places, driver.deadline_seconds)
        except TimeoutError:
            raise CheckpointError(f"step {ref.step} was saved, but {last.uri} does not answer") from None

    return Pending(ref.step, result, save.copy)


def _skipped_save(step: int) -> Pending:
    """A save that was not begun: two were under way."""

    def result(_: float | None) -> Commit:
        raise CheckpointError(f"step {step} was skipped: two saves were under way")

    return Pending(step, result, skipped=True)


def _look_up_commit(ref: CommitRef, stores: Sequence[Store], timeout_seconds: float) -> Commit:
    """The commit that another rank has reported, on whichever tier it is. Raises CheckpointError, TimeoutError."""

    def read() -> Commit:
        for store in stores:
            with contextlib.suppress(CommitGoneError):
                return read_commit(store, ref)
        raise CheckpointError(f"step {ref.step} was saved, but its commit is gone")

    with as_checkpoint_errors():
        return in_thread(f"read {ref.stem}", read).result(timeout_seconds)


def _error_text(error: Exception | None) -> str | None:
    """The text of an error for the other ranks."""
    if error is None or isinstance(error, CheckpointError):
        return None if error is None else str(error)
    return f"{type(error).__name__}: {one_line(error)}"


def _not_newer_error(step: int, newest: int) -> CheckpointError:
    return CheckpointError(f"step {step}: the newest commit is of step {newest}; rewind to save this one again")
