"""A log in numbered immutable segments of an S3 bucket."""

import contextlib
import threading
from typing import TYPE_CHECKING

from convoy.storage.base import StoreUnavailable

if TYPE_CHECKING:
    from convoy.storage.base import Store

SEGMENT_SECONDS = 3.0
"""A segment of a log is put at most this long after its first line."""


class SegmentAppender:
    """Lines gathered for SEGMENT_SECONDS and put as `<prefix>/<number>.jsonl`, each once and for ever.

    While the store is out of reach the lines are kept in memory and tried again; `flush` and `close` raise then.
    """

    def __init__(self, store: "Store", prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._lines: list[bytes] = []
        self._segment = b""  # being put; kept as it is until it is known to be there
        self._number = 0
        self._lock = threading.Lock()
        self._putting = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._put_regularly, name=f"segments {prefix}", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        with self._lock:
            self._lines.append(line)

    def flush(self) -> None:
        with self._putting:
            while self._segment or self._lines:
                if not self._segment:
                    with self._lock:
                        lines, self._lines = self._lines, []
                    self._segment = b"\n".join(lines) + b"\n"
                self._put(self._segment)
                self._segment = b""

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self.flush()

    def _put(self, segment: bytes) -> None:
        # A number is taken where a put that seemed to fail did succeed, or by this writer before it was started again.
        name = self._name()
        while not (self._store.create(name, segment) or self._store.read(name) == segment):
            self._number += 1
            name = self._name()
        self._number += 1

    def _name(self) -> str:
        return f"{self._prefix}/{self._number:08d}.jsonl"

    def _put_regularly(self) -> None:
        while not self._closed.wait(SEGMENT_SECONDS):
            with contextlib.suppress(StoreUnavailable):  # kept, and tried again next time
                self.flush()
