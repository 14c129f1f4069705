"""What an agent does without letting it delay or end the gang: calls that may hang, such as those to a store;
printing."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from convoy.storage import StoreUnavailable

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A call in a thread of its own, which is abandoned if it takes too long."""

    def __init__(self, what: str, call: Callable[[], T], seconds: float) -> None:
        """what: for the error. seconds: a call that takes longer counts as failed."""
        self._what = what
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._call = call
        self._value: T
        self._error: Exception | None = None
        self._returned = threading.Event()
        threading.Thread(target=self._run_call, name=what, daemon=True).start()

    @property
    def is_over(self) -> bool:
        """`result` would not wait."""
        return self._returned.is_set() or time.monotonic() >= self._deadline

    def result(self) -> T:
        """Wait for the call: return or raise what it did. Raises StoreUnavailable if it takes too long."""
        if not self._returned.wait(max(0.0, self._deadline - time.monotonic())):
            raise StoreUnavailable(f"{self._what}: no answer within {self._seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._value

    def _run_call(self) -> None:
        try:
            self._value = self._call()
        except Exception as error:
            self._error = error
        self._returned.set()


def say(line: str, *, error: bool = False) -> None:
    """Print a line at once; it is lost if the reader of this process's output is gone, as with a closed terminal."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr if error else sys.stdout, flush=True)
