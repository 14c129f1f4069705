"""Objects as files below a folder: a local disk or FSx for Lustre."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from convoy.storage.base import ObjectMissing, StoreUnavailable

_TEMPORARY = ".tmp-"


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
        try:
            with _outages(), open(self.folder / name, "rb") as file:
                file.seek(start)
                return file.read()
        except FileNotFoundError:
            raise ObjectMissing(name) from None

    def sizes(self, prefix: str) -> dict[str, int]:
        found: dict[str, int] = {}
        top = self.folder / prefix if prefix.endswith("/") else (self.folder / prefix).parent
        with _outages():
            for path in _files_below(top):
                name = path.relative_to(self.folder).as_posix()
                if name.startswith(prefix) and not path.name.startswith(_TEMPORARY):
                    with contextlib.suppress(FileNotFoundError):
                        found[name] = path.stat().st_size
        return dict(sorted(found.items()))

    def delete(self, name: str) -> None:
        with _outages(), contextlib.suppress(FileNotFoundError):
            (self.folder / name).unlink()

    def appender(self, prefix: str) -> "PosixAppender":
        return PosixAppender(self.folder / f"{prefix}.jsonl")

    @contextlib.contextmanager
    def _temporary(self, name: str, data: bytes) -> Iterator[Path]:
        """A synced file with `data` beside where `name` goes; gone afterwards unless it was renamed."""
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


class PosixAppender:
    """Lines in one file; each append is one write, so a reader never sees half of two lines mixed."""

    def __init__(self, path: Path) -> None:
        with _outages():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, line: bytes) -> None:
        with _outages():
            os.write(self._fd, line + b"\n")

    def flush(self) -> None:
        """Nothing to do: every append is visible at once."""

    def close(self) -> None:
        os.close(self._fd)


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent) / name


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _outages() -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise StoreUnavailable(error.errno, error.strerror or str(error), error.filename) from error
