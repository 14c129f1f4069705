"""Looking in a store for what became of an attempt, in threads of their own: one that hangs is left behind."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from convoy.checkpoint.commits import CommitGoneError, read_commit
from convoy.checkpoint.format import Commit, DamagedCommitError, failed_name, shards_prefix
from convoy.job.lineage import CommitRef
from convoy.storage import ObjectMissing, Store, StoreUnavailable

T = TypeVar("T")

Found = Commit | str | None
"""The commit, or why there will be none, or None: not yet known."""


@dataclass(frozen=True)
class _Look:
    attempt: str
    found: "Future[Found]"


class Looks:
    """For one thread at a time. On each tier at most one look is under way: while it hangs there is no other."""

    def __init__(self, stores: Sequence[Store], wake: Callable[[], None] = lambda: None) -> None:
        """wake: called by another thread when a look has an answer."""
        self._stores = stores
        self._wake = wake
        self._looks: dict[int, _Look] = {}

    def ask(self, tier: int, ref: CommitRef, attempt: str) -> bool:
        """Begin to look on a tier. Returns at once; False: an earlier look there has not been answered yet."""
        if tier in self._looks:
            return False
        found = in_thread(f"look on tier {tier}", lambda: _look(self._stores[tier], ref, attempt))
        self._looks[tier] = _Look(attempt, found)
        found.add_done_callback(lambda _: self._wake())
        return True

    def answer(self, tier: int, attempt: str) -> Found:
        """What the look for an attempt has found, told once; None while there is no answer. Never blocks.

        Raises what no look should have raised.
        """
        look = self._looks.get(tier)
        if look is None or not look.found.done():
            return None
        del self._looks[tier]
        return look.found.result() if look.attempt == attempt else None


def in_thread(name: str, work: Callable[[], T]) -> "Future[T]":
    """What the work gives or raises, in a thread of its own. Nothing waits for that when the process ends."""
    given: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            given.set_exception(error)
        else:
            given.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return given


def find_commit(store: Store, ref: CommitRef, attempt: str) -> Found:
    """The commit of a generation and step if it is there, or what a writer said when it gave the attempt up, or None.

    Raises StoreUnavailable, DamagedCommitError.
    """
    with contextlib.suppress(CommitGoneError):
        return read_commit(store, ref)
    failed = store.sizes(shards_prefix(ref.generation, ref.step, attempt) + failed_name(0)[:7])
    for name in failed:
        with contextlib.suppress(ObjectMissing):  # pruned meanwhile
            said = store.read(name).decode(errors="replace")
            with contextlib.suppress(CommitGoneError):  # made meanwhile; its coordinator may not have heard of that
                return read_commit(store, ref)
            return said
    return None


def _look(store: Store, ref: CommitRef, attempt: str) -> Found:
    with contextlib.suppress(StoreUnavailable, DamagedCommitError):
        return find_commit(store, ref, attempt)
    return None
