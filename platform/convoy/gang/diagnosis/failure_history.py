"""The first causes of a job's earlier generations, as node 0's agents logged them."""

import contextlib

from pydantic import ValidationError

from convoy.gang.async_call import Background
from convoy.gang.diagnosis.verdict import FRUITLESS
from convoy.job.events.types import FailureDetected, decode
from convoy.storage import Store, StoreUnavailable

READ_SECONDS = 30.0


class Past:
    """Those of earlier attempts as soon as they are read, and then this one's."""

    def __init__(self, store: Store, first: int) -> None:
        """first: generation of this attempt. Begins to read."""
        self._earlier = Background("the earlier log", lambda: earlier_failures(store, first), READ_SECONDS)
        self._own: list[FailureDetected] = []

    def add(self, cause: FailureDetected) -> None:
        self._own.append(cause)

    def failures(self) -> list[FailureDetected]:
        """Oldest first. Does not wait."""
        if self._earlier.over:
            with contextlib.suppress(StoreUnavailable):
                return [*self._earlier.result(), *self._own]
        return self._own


def earlier_failures(store: Store, before: int) -> list[FailureDetected]:
    """Oldest first, of the newest generations below `before`, as many as a verdict looks at.

    Where node 0 itself was lost, nothing is found: that was no fault of the job. Raises StoreUnavailable.
    """
    found: list[FailureDetected] = []
    for generation in range(max(1, before - FRUITLESS), before):
        for name in store.sizes(f"events/{generation:06d}/00000/agent"):
            found += _failures(store.read(name))
    return found


def _failures(data: bytes) -> list[FailureDetected]:
    found = []
    for line in data.splitlines():
        with contextlib.suppress(ValidationError):  # another version's, or half a line
            event = decode(line)
            if isinstance(event, FailureDetected):
                found.append(event)
    return found
