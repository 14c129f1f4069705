"""Objects as files below a folder: a local disk or FSx for Lustre."""

import collections
import contextlib
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from convoy.storage.base import ObjectMissing, StoreUnavailable

_TEMPORARY = ".tmp-"

# A name below a file, or the name of a folder, is no object's name either.
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class PosixStore:
    """A Store in a folder, which is made when something is first written."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self.uri = str(self.folder)

    def create(self, name: str, data: bytes) -> bool:
        # link(2) fails if the target exists, on every POSIX file system; renameat2(NOREPLACE) fails on Lustre.
        with _outages(), self._temporary(name, data) as temporary:
            try:
                os.link(temporary, self.folder / name)
            except FileExistsError:
                return False
            _sync_folder((self.folder / name).parent)
            return True

    def write(self, name: str, data: bytes) -> None:
        with _outages(), self._temporary(name, data) as temporary:
            temporary.rename(self.folder / name)
            _sync_folder((self.folder / name).parent)

    def read(self, name: str, start: int = 0) -> bytes:
        with _outages():
            try:
                with open(self.folder / name, "rb") as file:
                    file.seek(start)
                    return file.read()
            except _ABSENT:
                raise ObjectMissing(name) from None

    def sizes(self, prefix: str) -> dict[str, int]:
        found: dict[str, int] = {}
        with _outages():
            for path in _files_below(self.folder / prefix.rpartition("/")[0]):
                name = path.relative_to(self.folder).as_posix()
                if name.startswith(prefix) and not path.name.startswith(_TEMPORARY):
                    with contextlib.suppress(FileNotFoundError):
                        found[name] = path.stat().st_size
        return dict(sorted(found.items()))

    def delete(self, name: str) -> None:
        with _outages(), contextlib.suppress(*_ABSENT):
            (self.folder / name).unlink()

    def appender(self, prefix: str) -> "PosixAppender":
        return PosixAppender(self.folder / f"{prefix}.jsonl")

    @contextlib.contextmanager
    def _temporary(self, name: str, data: bytes) -> Iterator[Path]:
        """A synced file with `data` beside where `name` goes; gone afterwards unless it was renamed."""
        target = self.folder / name
        _make_folder(target.parent)
        temporary = target.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


_MOST_PENDING = 100_000


class PosixAppender:
    """Lines in one file; each is written whole, so a reader never sees half of two lines mixed.

    Where a line cannot be written (a full disk), it and the next ones wait for a later append: only `flush` and
    `close` raise.
    """

    def __init__(self, path: Path) -> None:
        with _outages():
            _make_folder(path.parent)
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
        with self._lock, _outages():
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


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder, onerror=_raise_unless_absent):
        for name in names:
            yield Path(parent) / name


def _raise_unless_absent(error: OSError) -> None:
    # By default os.walk passes over a folder that it cannot read: an outage would look like an empty store.
    if not isinstance(error, _ABSENT):
        raise error


def _make_folder(folder: Path) -> None:
    """Make the folder and its parents so that they outlive a crash."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _ends_torn(path: Path) -> bool:
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        return file.read(1) not in (b"", b"\n")


@contextlib.contextmanager
def _outages() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(error.errno, error.strerror or str(error), error.filename) from error
