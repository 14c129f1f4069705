"""A log in one file of a POSIX path."""

import collections
import contextlib
import os
import threading
from pathlib import Path

from convoy.storage.posix_folder import make_folder, outages

_MOST_PENDING = 100_000


class PosixAppender:
    """Lines in one file; each is written whole, so a reader never sees half of two lines mixed.

    Where a line cannot be written (a full disk), it and the next ones wait for a later append: only `flush` and
    `close` raise.
    """

    def __init__(self, path: Path) -> None:
        with outages():
            make_folder(path.parent)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            self._torn = _ends_torn(path)
        self._open = True
        self._lock = threading.Lock()
        self._pending: collections.deque[bytes] = collections.deque(maxlen=_MOST_PENDING)

    def append(self, line: bytes) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._pending.append(line)
            self._write_pending()

    def flush(self) -> None:
        """Every append is visible at once; this makes it durable. Raises StoreUnavailable if lines still wait."""
        with self._lock, outages():
            self._write_pending()
            os.fsync(self._fd)

    def _write_pending(self) -> None:
        while self._pending:
            # A full disk can leave half a line behind: it must not swallow the next one.
            data = b"\n" * self._torn + self._pending[0] + b"\n"
            self._torn = True
            while data:
                data = data[os.write(self._fd, data) :]
            self._torn = False
            self._pending.popleft()

    def close(self) -> None:
        if self._open:
            self.flush()
            self._open = False
            os.close(self._fd)


def _ends_torn(path: Path) -> bool:
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        return file.read(1) not in (b"", b"\n")
