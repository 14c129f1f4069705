"""Logs whose lines a thread writes, so that who appends never waits for the storage.

A log is one file in a folder, or numbered immutable segments on an object store.
"""

import os
import threading
from collections import deque
from pathlib import Path
from typing import Protocol

from convoy.storage.base import FLUSH_SECONDS, Store, StoreUnavailable
from convoy.storage.posix_files import as_outages, explain_full_disk, make_folder

MAX_LINES = 100_000
"""So many lines wait while the storage does not take them; then the oldest are dropped."""

RETRY_SECONDS = 1.0
"""Between two tries while the storage refuses."""

SEGMENT_SECONDS = 3.0
"""A segment of a log is put at most this long after its first line."""


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
    """A log that one writer appends to: `append` neither waits for the storage nor fails by it. Lines that the storage
    refuses are tried again, in order, for as long as the process lives."""

    def __init__(self, sink: Sink, name: str, gather_seconds: float = 0.0) -> None:
        """name: for errors. gather_seconds: lines are gathered for so long and written together."""
        self._sink = sink
        self._name = name
        self._gather_seconds = gather_seconds
        self._lines: deque[bytes] = deque()
        self._batch: deque[bytes] = deque()  # handed to the sink, and not written yet
        self._behind = False  # a try is under way, or the newest one failed
        self._dropped = 0
        self._flushes = self._answered = 0  # requested, and done
        self._error: Exception | None = None  # of the newest try
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write_loop, name=f"log {name}", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        """Add one line, without its newline."""
        with self._changed:
            if self._closed:
                raise ValueError(f"{self._name}: the log is closed")
            if len(self._lines) >= MAX_LINES:
                self._lines.popleft()
                self._dropped += 1
            self._lines.append(line)
            if len(self._lines) == 1:
                self._changed.notify_all()

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> None:
        """Return when every line appended so far is durable and visible. Raises StoreUnavailable at an error, or when
        that takes longer; the lines are kept."""
        with self._changed:
            if self._closed:
                return
            self._flushes += 1
            mine = self._flushes
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._answered >= mine, timeout_seconds):
                waiting = len(self._lines) + len(self._batch)
                raise StoreUnavailable(f"{self._name}: no answer in {timeout_seconds:g} s; {waiting} lines wait")
            if self._error is not None:
                raise self._error

    def close(self, timeout_seconds: float = FLUSH_SECONDS) -> None:
        """Flush, and release what the log holds. After StoreUnavailable it is still open."""
        self.flush(timeout_seconds)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_seconds)

    def take_dropped(self) -> int:
        """Lines lost since the last call, because too many waited; 0 while the storage is away."""
        with self._changed:
            if self._behind:
                return 0
            dropped, self._dropped = self._dropped, 0
            return dropped

    def _write_loop(self) -> None:
        while self._await_work():
            with self._changed:
                flushes, self._behind = self._flushes, True
            error = self._write_all(sync=flushes > self._answered)
            with self._changed:
                self._answered, self._error, self._behind = flushes, error, error is not None
                self._changed.notify_all()
        self._sink.close()

    def _await_work(self) -> bool:
        """Return when it is time to write; False: the log is closed, and everything is written."""
        with self._changed:
            self._changed.wait_for(lambda: self._batch or self._lines or self._must_write_now())
            if self._batch:
                self._changed.wait_for(lambda: self._flushes > self._answered, RETRY_SECONDS)
            elif self._gather_seconds:
                self._changed.wait_for(self._must_write_now, self._gather_seconds)
            return bool(self._batch or self._lines or self._flushes > self._answered)

    def _must_write_now(self) -> bool:
        return self._closed or self._flushes > self._answered

    def _write_all(self, sync: bool) -> Exception | None:
        """Write all there is; what went wrong."""
        try:
            while self._take_batch():
                self._sink.write(self._batch)
            if sync:
                self._sink.sync()
        except Exception as error:  # whatever it is: this thread may not end, and whoever flushes gets the error
            return error
        return None

    def _take_batch(self) -> bool:
        """Take the lines that wait as the next batch, unless the last one is not written yet."""
        with self._changed:
            if not self._batch:
                self._batch, self._lines = self._lines, self._batch
            return bool(self._batch)


class FileSink:
    """Lines in one file; each is written whole, so a reader never sees half of two lines mixed."""

    def __init__(self, path: Path) -> None:
        with as_outages():
            make_folder(path.parent)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)
            os.set_blocking(self._fd, True)  # only the opening was not to wait, as for a reader of a pipe
            self._torn = _ends_mid_line(path)
            self._path = path

    def write(self, lines: deque[bytes]) -> None:
        with as_outages():
            while lines:
                # A full disk can leave half a line behind: it must not swallow the next one.
                data = b"\n" * self._torn + lines[0] + b"\n"
                self._torn = True
                with explain_full_disk(len(data), self._path):
                    while data:
                        data = data[os.write(self._fd, data) :]
                self._torn = False
                lines.popleft()

    def sync(self) -> None:
        with as_outages():
            os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def _ends_mid_line(path: Path) -> bool:
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        return file.read(1) not in (b"", b"\n")


class SegmentSink:
    """Puts the lines it is given as `<prefix>/<number>.jsonl`, each once and for ever."""

    def __init__(self, store: Store, prefix: str) -> None:
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
