"""The shared tiers as a writer process sees them: opened and proven in parallel; one that hangs holds up none."""

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, cast

from convoy.checkpoint.save.commit_lookup import in_thread
from convoy.config.checkpoint import StoreConfig
from convoy.storage import Store, StoreUnavailable, open_store

ROOT_SECONDS = 10.0
"""How long the root may take to answer those who do to another tier what it has to allow."""


class Tiers:
    """Stores by URI. Each is opened and proves itself in a thread of its own, which is left behind if it hangs."""

    def __init__(self, uris: Sequence[str], config: StoreConfig) -> None:
        """uris: of the job on each tier, the root first."""
        self._config = config
        self._lock = threading.Lock()
        self._proofs = {uri: self._begin_opening(uri) for uri in uris}
        self._root = uris[0]
        self._bounded: Store | None = None

    def root(self) -> Store | None:
        """The first tier, whose calls fail where it does not answer in time; None while it has not proven itself."""
        with self._lock:
            proof = self._proofs[self._root]
            if self._bounded is None and proof.done() and proof.exception() is None:
                self._bounded = with_timeout(proof.result(), ROOT_SECONDS)
            return self._bounded

    def store(self, uri: str, timeout_seconds: float) -> Store:
        """The proven store. Raises StoreUnfit, StoreUnavailable if it does not answer in time.

        A store that was out of reach is tried again.
        """
        with self._lock:
            proof = self._proofs.get(uri)
            if proof is None or (proof.done() and isinstance(proof.exception(), StoreUnavailable)):
                proof = self._proofs[uri] = self._begin_opening(uri)
        try:
            return proof.result(max(0.0, timeout_seconds))
        except TimeoutError:
            raise StoreUnavailable(f"{uri}: did not answer within {timeout_seconds:.0f} s") from None

    def wait_until_proven(self, timeout_seconds: float) -> None:
        """Return when every tier has proven itself or failed to, or the time is over."""
        wait(self._proofs.values(), timeout_seconds)

    def _begin_opening(self, uri: str) -> "Future[Store]":
        def open_and_prove() -> Store:
            store = open_store(uri, self._config)
            store.prove()
            return store

        return in_thread(f"open {uri}", open_and_prove)


def with_timeout(store: Store, seconds: float) -> Store:
    """The store, but that a call which takes longer raises StoreUnavailable. For small objects and listings: whoever
    only looks there in passing must not hang where it does."""
    return cast(Store, _WithTimeout(store, seconds))


class _WithTimeout:
    """Each call is made by a thread of its own. One that hangs is left behind, and until it ends no other is begun."""

    def __init__(self, store: Store, seconds: float) -> None:
        self.uri = store.uri
        self._store = store
        self._seconds = seconds
        self._hanging: Future[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._call, getattr(self._store, name))

    def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        error = StoreUnavailable(f"{self.uri}: did not answer within {self._seconds:g} s")
        if self._hanging is not None and not self._hanging.done():
            raise error
        result = in_thread(f"ask {self.uri}", functools.partial(call, *args))
        try:
            return result.result(self._seconds)
        except TimeoutError:
            self._hanging = result
            raise error from None
