"""Stores that misbehave on purpose, around one that does not."""

import collections
import threading
from collections.abc import Callable
from typing import Any

from convoy.storage import Store, StoreUnavailable
from tests.checkpoint.stage import OPERATIONS


def _nothing(operation: str, name: str) -> None:
    pass


class Hooked:
    """Passes everything on to a store, and calls back before and after each operation, with the name that it is for."""

    uri: str

    def __init__(
        self,
        store: Store,
        before: Callable[[str, str], object] = _nothing,
        after: Callable[[str, str], object] = _nothing,
    ) -> None:
        self._store = store
        self._before = before
        self._after = after

    def __getattr__(self, operation: str) -> Any:
        real = getattr(self._store, operation)
        if operation not in (*OPERATIONS, "drop_cache", "prove"):
            return real

        def hooked(*args: Any, **options: Any) -> Any:
            name = args[0] if args else ""
            self._before(operation, name)
            answer = self._answer(operation, args, real(*args, **options))
            self._after(operation, name)
            return answer

        return hooked

    def _answer(self, operation: str, args: tuple[Any, ...], answer: Any) -> Any:
        return answer


class Faulty(Hooked):
    """A store with reads that are garbled, names that are out of reach, and files that it does not take.

    `calls` has every read and every drop of a cache, with its name.
    """

    def __init__(self, store: Store, *, refused_puts: float = 0) -> None:
        """refused_puts: how many files it does not take, before it takes further ones."""
        super().__init__(store, self._misbehave)
        self._garbled: collections.Counter[str] = collections.Counter()
        self._errors: dict[str, Exception] = {}
        self._hanging: dict[str, threading.Event] = {}
        self.refused_puts = refused_puts
        self.calls: list[tuple[str, str]] = []

    def garble(self, name: str, times: int) -> None:
        """The next so many reads of the object give one flipped bit."""
        self._garbled[name] = times

    def fail(self, name: str, error: Exception | None = None) -> None:
        """Reads, listings and creations of that name fail from now on."""
        self._errors[name] = error or StoreUnavailable(f"{name} is out of reach")

    def hang(self, name: str, until: threading.Event) -> None:
        """They do not return before the event."""
        self._hanging[name] = until

    def mend(self, name: str) -> None:
        """The object is within reach again."""
        del self._errors[name]

    def _misbehave(self, operation: str, name: str) -> None:
        if operation in ("read", "read_into", "drop_cache"):
            self.calls.append((operation, name))
        if operation == "put" and self.refused_puts > 0:
            self.refused_puts -= 1
            raise StoreUnavailable("no space")
        if operation in ("create", "sizes", "read", "read_into"):
            if name in self._hanging:
                self._hanging[name].wait()
            if name in self._errors:
                raise self._errors[name]

    def _answer(self, operation: str, args: tuple[Any, ...], answer: Any) -> Any:
        if operation not in ("read", "read_into") or self._garbled[args[0]] <= 0:
            return answer
        self._garbled[args[0]] -= 1
        data = args[2] if operation == "read_into" else bytearray(answer)
        data[len(data) // 2] ^= 0x10
        return answer if operation == "read_into" else bytes(data)
