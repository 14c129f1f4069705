"""A log whose lines a thread writes, so that who appends never waits for the storage."""

import threading
from collections import deque
from typing import Protocol

from convoy.storage.base import FLUSH_SECONDS, StoreUnavailable

MOST_LINES = 100_000
"""So many lines wait while the storage does not take them; then the oldest are dropped."""

RETRY_SECONDS = 1.0
"""Between two tries while the storage refuses."""


class Sink(Protocol):
    """Where the lines of one log go. Used by one thread at a time."""

    def write(self, lines: deque[bytes]) -> None:
        """Write the lines in their order, and take each out of `lines` once it is written. After an error, which is
        raised, the next call gets what is left, and nothing more: no line may come twice."""

    def sync(self) -> None:
        """Make durable what was written."""

    def close(self) -> None:
        """Release what the sink holds."""


class BackgroundLog:
    """An Appender. Lines that the storage refuses are tried again, in order, for as long as the process lives."""

    def __init__(self, sink: Sink, name: str, gather_seconds: float = 0.0) -> None:
        """name: for errors. gather_seconds: lines are gathered for so long and written together."""
        self._sink = sink
        self._name = name
        self._gather_seconds = gather_seconds
        self._lines: deque[bytes] = deque()
        self._batch: deque[bytes] = deque()  # handed to the sink, and not written yet
        self._behind = False  # a try is under way, or the newest one failed
        self._dropped = 0
        self._asked = self._answered = 0  # flushes
        self._error: Exception | None = None  # of the newest try
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"log {name}", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        with self._changed:
            if self._closed:
                raise ValueError(f"{self._name}: the log is closed")
            if len(self._lines) >= MOST_LINES:
                self._lines.popleft()
                self._dropped += 1
            self._lines.append(line)
            if len(self._lines) == 1:
                self._changed.notify_all()

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> None:
        with self._changed:
            if self._closed:
                return
            self._asked += 1
            mine = self._asked
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._answered >= mine, timeout_seconds):
                waiting = len(self._lines) + len(self._batch)
                raise StoreUnavailable(f"{self._name}: no answer in {timeout_seconds:g} s; {waiting} lines wait")
            if self._error is not None:
                raise self._error

    def close(self, timeout_seconds: float = FLUSH_SECONDS) -> None:
        self.flush(timeout_seconds)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_seconds)

    def take_dropped(self) -> int:
        with self._changed:
            if self._behind:
                return 0
            dropped, self._dropped = self._dropped, 0
            return dropped

    def _run(self) -> None:
        while self._await_work():
            with self._changed:
                asked, self._behind = self._asked, True
            error = self._write(sync=asked > self._answered)
            with self._changed:
                self._answered, self._error, self._behind = asked, error, error is not None
                self._changed.notify_all()
        self._sink.close()

    def _await_work(self) -> bool:
        """Return when it is time to write; False: the log is closed, and everything is written."""
        with self._changed:
            self._changed.wait_for(lambda: self._batch or self._lines or self._pressed())
            if self._batch:
                self._changed.wait_for(lambda: self._asked > self._answered, RETRY_SECONDS)
            elif self._gather_seconds:
                self._changed.wait_for(self._pressed, self._gather_seconds)
            return bool(self._batch or self._lines or self._asked > self._answered)

    def _pressed(self) -> bool:
        return self._closed or self._asked > self._answered

    def _write(self, sync: bool) -> Exception | None:
        """Write all there is; what went wrong."""
        try:
            while self._fill():
                self._sink.write(self._batch)
            if sync:
                self._sink.sync()
        except Exception as error:  # whatever it is: this thread may not end, and who flushes is told
            return error
        return None

    def _fill(self) -> bool:
        """Take the lines that wait as the next batch, unless the last one is not written yet."""
        with self._changed:
            if not self._batch:
                self._batch, self._lines = self._lines, self._batch
            return bool(self._batch)
