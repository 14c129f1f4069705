"""The shared tiers as a writer process sees them: opened and proven side by side; one that hangs holds up none."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait

from convoy.checkpoint.writer.time_limited_store import bounded
from convoy.config.checkpoint import StoreConfig
from convoy.storage import Store, StoreUnavailable, open_store
from convoy.storage.base import StoreUnfit

ROOT_SECONDS = 10.0
"""How long the root may take to answer those who do to another tier what it has to allow."""


class Tiers:
    """Stores by URI. Each is opened and proves itself in a thread of its own, which is left behind if it hangs."""

    def __init__(self, uris: Sequence[str], config: StoreConfig) -> None:
        """uris: of the job on each tier, the root first."""
        self._config = config
        self._lock = threading.Lock()
        self._proofs = {uri: self._begin(uri) for uri in uris}
        self._root = uris[0]
        self._bounded: Store | None = None

    def root(self) -> Store | None:
        """The first tier, whose calls fail where it does not answer in time; None while it has not proven itself."""
        with self._lock:
            proof = self._proofs[self._root]
            if self._bounded is None and proof.done() and proof.exception() is None:
                self._bounded = bounded(proof.result(), ROOT_SECONDS)
            return self._bounded

    def store(self, uri: str, timeout_seconds: float) -> Store:
        """The proven store. Raises StoreUnfit, StoreUnavailable if it does not answer in time.

        A store that was out of reach is asked again.
        """
        with self._lock:
            proof = self._proofs.get(uri)
            if proof is None or (proof.done() and isinstance(proof.exception(), StoreUnavailable)):
                proof = self._proofs[uri] = self._begin(uri)
        try:
            return proof.result(max(0.0, timeout_seconds))
        except TimeoutError:
            raise StoreUnavailable(f"{uri}: did not answer within {timeout_seconds:.0f} s") from None

    def unfit(self, timeout_seconds: float) -> dict[str, str]:
        """Tiers that do not keep what commits stand on, and why; one that does not answer is not among them."""
        done, _ = wait(self._proofs.values(), timeout_seconds)
        errors = {uri: proof.exception() for uri, proof in self._proofs.items() if proof in done}
        return {uri: str(error) for uri, error in errors.items() if isinstance(error, StoreUnfit)}

    def _begin(self, uri: str) -> "Future[Store]":
        proof: Future[Store] = Future()
        threading.Thread(target=self._prove, args=(uri, proof), name=f"open {uri}", daemon=True).start()
        return proof

    def _prove(self, uri: str, proof: "Future[Store]") -> None:
        try:
            store = open_store(uri, self._config)
            store.prove()
        except BaseException as error:
            proof.set_exception(error)
        else:
            proof.set_result(store)
