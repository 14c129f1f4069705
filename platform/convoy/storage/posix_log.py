"""A log in one file of a POSIX path."""

import os
from collections import deque
from pathlib import Path

from convoy.storage.posix_folder import make_folder, outages, room_for


class FileSink:
    """Lines in one file; each is written whole, so a reader never sees half of two lines mixed."""

    def __init__(self, path: Path) -> None:
        with outages():
            make_folder(path.parent)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)
            os.set_blocking(self._fd, True)  # only the opening was not to wait, as for a reader of a pipe
            self._torn = _ends_torn(path)
            self._path = path

    def write(self, lines: deque[bytes]) -> None:
        with outages():
            while lines:
                # A full disk can leave half a line behind: it must not swallow the next one.
                data = b"\n" * self._torn + lines[0] + b"\n"
                self._torn = True
                with room_for(len(data), self._path):
                    while data:
                        data = data[os.write(self._fd, data) :]
                self._torn = False
                lines.popleft()

    def sync(self) -> None:
        with outages():
            os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def _ends_torn(path: Path) -> bool:
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        return file.read(1) not in (b"", b"\n")
