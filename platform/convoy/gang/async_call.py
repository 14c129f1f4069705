"""Calls that may hang, such as those to a store, made where nobody waits for them."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from convoy.storage import StoreUnavailable

T = TypeVar("T")


class Background(Generic[T]):
    """A call in a thread of its own, which is left to itself if it takes too long."""

    def __init__(self, what: str, call: Callable[[], T], seconds: float) -> None:
        """what: for the error. seconds: what takes longer counts as failed."""
        self._what = what
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._call = call
        self._value: T
        self._error: Exception | None = None
        self._returned = threading.Event()
        threading.Thread(target=self._run, name=what, daemon=True).start()

    @property
    def over(self) -> bool:
        """`result` would not wait."""
        return self._returned.is_set() or time.monotonic() >= self._deadline

    def result(self) -> T:
        """What the call returned, or raise what it raised; waits for it. Raises StoreUnavailable if it is too late."""
        if not self._returned.wait(max(0.0, self._deadline - time.monotonic())):
            raise StoreUnavailable(f"{self._what}: no answer within {self._seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            self._value = self._call()
        except Exception as error:
            self._error = error
        self._returned.set()
