"""A save that was begun, and how its commit is waited for, on each rank by itself."""

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from convoy.checkpoint.commits import CommitGoneError, read_commit
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import Commit
from convoy.checkpoint.raised import as_checkpoint_errors
from convoy.checkpoint.save.commit_lookup import in_thread
from convoy.checkpoint.save.staging import Staged
from convoy.checkpoint.save.tracker import Outcome, Saves
from convoy.job.lineage import CommitRef
from convoy.storage import Store


class Pending:
    """A save that was begun."""

    def __init__(
        self,
        step: int,
        copy: Staged | None,
        result: Callable[[float | None], Commit],
        *,
        skipped: bool = False,
    ) -> None:
        self.step = step
        self.skipped = skipped
        """Two saves were under way already: this one was not begun."""
        self._copy = copy
        self._result = result

    def staged(self) -> None:
        """Return when the state may be changed by other things than the optimizer's step, which waits by itself."""
        if self._copy is not None:
            self._copy.wait()

    def wait(self, timeout_seconds: float | None = None) -> Commit:
        """The commit, once it is durable. Raises CheckpointError, which says why there is none, and TimeoutError.

        A store that hangs is waited for until the save's deadline, on each tier. A rank to which it does not tell what
        became of the save raises that the step may not be saved: the coordinator, rank 0, alone knows then.
        """
        return self._result(timeout_seconds)


def skipped(step: int) -> Pending:
    """One that was not begun: two were under way."""

    def result(_: float | None) -> Commit:
        raise CheckpointError(f"step {step} was skipped: two saves were under way")

    return Pending(step, None, result, skipped=True)


def begun(
    outcome: "Future[Outcome]",
    ref: CommitRef,
    copy: Staged | None,
    saves: Saves,
    stores: Sequence[Store],
    deadline_seconds: float,
) -> Pending:
    """One of `saves`. deadline_seconds: for looking its commit up, where only another rank has it."""

    def result(timeout_seconds: float | None) -> Commit:
        began = time.monotonic()
        settled = saves.wait(outcome, timeout_seconds)
        if settled.error is not None:
            raise CheckpointError(f"{settled.failure}: {settled.error}")
        if settled.commit is not None:
            return settled.commit
        last = stores[settled.attempt.tier]
        places = [last, *(store for store in stores if store is not last)]
        if timeout_seconds is not None:
            return _look_up(ref, places, max(0.0, began + timeout_seconds - time.monotonic()))
        try:
            return _look_up(ref, places, deadline_seconds)
        except TimeoutError:
            raise CheckpointError(f"step {ref.step} was saved, but {last.uri} does not answer") from None

    return Pending(ref.step, copy, result)


def _look_up(ref: CommitRef, places: Sequence[Store], timeout_seconds: float) -> Commit:
    """The commit that another rank has told of, on whichever tier it is. Raises CheckpointError, TimeoutError."""

    def read() -> Commit:
        for store in places:
            with contextlib.suppress(CommitGoneError):
                return read_commit(store, ref)
        raise CheckpointError(f"step {ref.step} was saved, but its commit is gone")

    with as_checkpoint_errors():
        return in_thread(f"read {ref.stem}", read).result(timeout_seconds)
