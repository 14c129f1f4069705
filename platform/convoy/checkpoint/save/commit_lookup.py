"""Looking in a store for what became of an attempt, in threads of their own: one that hangs is left behind."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from convoy.checkpoint.commits import CommitGoneError, read_commit
from convoy.checkpoint.format import Commit, DamagedCommitError, failure_note_name, shards_prefix
from convoy.job.lineage import CommitRef
from convoy.storage import ObjectMissing, Store, StoreUnavailable

T = TypeVar("T")

LookupResult = Commit | str | None
"""The commit, or why there will be none, or None: not decided yet."""


class CommitLookup:
    """Not for several threads at once. On each tier one look-up is under way at most: while it hangs none begins."""

    def __init__(self, stores: Sequence[Store], wake: Callable[[], None] = lambda: None) -> None:
        """wake: called by another thread when a look-up has ended."""
        self._stores = stores
        self._wake = wake
        self._lookups: dict[int, tuple[str, Future[LookupResult]]] = {}
        """By tier: the attempt that is looked up, and the result."""

    def begin(self, tier: int, ref: CommitRef, attempt: str) -> bool:
        """Begin to look on a tier. Returns at once; False: an earlier look-up there has not ended yet."""
        if tier in self._lookups:
            return False
        result = in_thread(f"look on tier {tier}", lambda: _find_or_none(self._stores[tier], ref, attempt))
        self._lookups[tier] = attempt, result
        result.add_done_callback(lambda _: self._wake())
        return True

    def take_result(self, tier: int, attempt: str) -> LookupResult:
        """The result of the look-up of an attempt, only once; None while it has not ended. Never blocks.

        Raises whatever a look-up should not have raised.
        """
        if tier not in self._lookups or not self._lookups[tier][1].done():
            return None
        name, result = self._lookups.pop(tier)
        return result.result() if name == attempt else None


def in_thread(name: str, work: Callable[[], T]) -> "Future[T]":
    """Run the work in a thread of its own, which the end of the process does not wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def find_commit(store: Store, ref: CommitRef, attempt: str) -> LookupResult:
    """The commit of a generation and step if it exists, or the error with which a writer gave the attempt up, or None.

    Raises StoreUnavailable, DamagedCommitError.
    """
    with contextlib.suppress(CommitGoneError):
        return read_commit(store, ref)
    failed = store.sizes(shards_prefix(ref.generation, ref.step, attempt) + failure_note_name(0)[:7])
    for name in failed:
        with contextlib.suppress(ObjectMissing):  # pruned meanwhile
            error = store.read(name).decode(errors="replace")
            with contextlib.suppress(CommitGoneError):  # made meanwhile: its coordinator may not know of it
                return read_commit(store, ref)
            return error
    return None


def _find_or_none(store: Store, ref: CommitRef, attempt: str) -> LookupResult:
    with contextlib.suppress(StoreUnavailable, DamagedCommitError):
        return find_commit(store, ref, attempt)
    return None
