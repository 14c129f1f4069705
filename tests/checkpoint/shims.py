"""Stores that misbehave on purpose, around one that does not."""

import collections
import threading
from typing import Any

from convoy.storage import Store, StoreUnavailable


class Faulty:
    """Passes everything on to a store, but for reads that are garbled and names that are out of reach.

    `calls` has every read and every drop of a cache, with its name.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._garbled: collections.Counter[str] = collections.Counter()
        self._out_of_reach = set[str]()
        self._hanging: dict[str, threading.Event] = {}
        self.calls: list[tuple[str, str]] = []

    def garble(self, name: str, times: int) -> None:
        """The next so many reads of the object give one flipped bit."""
        self._garbled[name] = times

    def fail(self, name: str) -> None:
        """Reads, listings and creations of that name fail from now on."""
        self._out_of_reach.add(name)

    def hang(self, name: str, until: threading.Event) -> None:
        """They do not return before the event."""
        self._hanging[name] = until

    def mend(self, name: str) -> None:
        """The object is within reach again."""
        self._out_of_reach.discard(name)

    def create(self, name: str, data: bytes, *, private: bool = False) -> bool:
        self._check(name)
        return self._store.create(name, data, private=private)

    def sizes(self, prefix: str) -> dict[str, int]:
        self._check(prefix)
        return self._store.sizes(prefix)

    def read(self, name: str, start: int = 0) -> bytes:
        self.calls.append(("read", name))
        self._check(name)
        data = bytearray(self._store.read(name, start))
        return bytes(self._passed(name, memoryview(data)))

    def read_into(self, name: str, start: int, buffer: memoryview) -> int:
        self.calls.append(("read_into", name))
        self._check(name)
        count = self._store.read_into(name, start, buffer)
        self._passed(name, buffer)
        return count

    def drop_cache(self, name: str) -> None:
        self.calls.append(("drop_cache", name))
        self._store.drop_cache(name)

    def _check(self, name: str) -> None:
        if name in self._hanging:
            self._hanging[name].wait()
        if name in self._out_of_reach:
            raise StoreUnavailable(f"{name} is out of reach")

    def _passed(self, name: str, data: memoryview) -> memoryview:
        if self._garbled[name] > 0:
            self._garbled[name] -= 1
            data[len(data) // 2] ^= 0x10
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
