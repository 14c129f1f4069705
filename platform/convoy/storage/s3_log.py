"""A log in numbered immutable segments of an S3 bucket."""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from convoy.storage.base import Store

SEGMENT_SECONDS = 3.0
"""A segment of a log is put at most this long after its first line."""


class SegmentSink:
    """Puts the lines it is given as `<prefix>/<number>.jsonl`, each once and for ever."""

    def __init__(self, store: "Store", prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._number = 0

    def write(self, lines: deque[bytes]) -> None:
        segment = b"\n".join(lines) + b"\n"
        # A number is taken where a put that seemed to fail did succeed, or by this writer before it was started again.
        while not (self._store.create(self._name(), segment) or self._store.read(self._name()) == segment):
            self._number += 1
        self._number += 1
        lines.clear()

    def sync(self) -> None:
        """A segment is durable when it is put."""

    def close(self) -> None:
        """Nothing is held."""

    def _name(self) -> str:
        return f"{self._prefix}/{self._number:08d}.jsonl"
