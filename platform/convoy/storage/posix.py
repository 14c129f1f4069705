"""Objects as files below a folder: a local disk or FSx for Lustre."""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from convoy.storage.base import ObjectInfo, ObjectMissing, StoreUnavailable, StoreUnfit, check_name, check_prefix, prove
from convoy.storage.log import BackgroundLog, FileSink
from convoy.storage.posix_files import (
    ABSENT,
    as_outages,
    drop_page_cache,
    explain_full_disk,
    files_below,
    make_folder,
    open_file,
    read_at,
    refuse_links_out,
    sync_folder,
    write_new,
)

_TEMPORARY = ".tmp-"

_PROBE = b"probe".ljust(4096, b"\0")
"""A whole page: on a full file system there is no room for it."""

_NOT_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
"""From file systems that have no O_TMPFILE, such as NFS and Lustre."""

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class PosixStore:
    """A Store in a folder, which is made when something is first written.

    Once the folder has existed it is never made again: where it has gone, a file system has been unmounted, and
    that is an outage, no empty store.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self.uri = str(self.folder)
        self._existed = False

    def create(self, name: str, data: bytes, *, private: bool = False) -> bool:
        # link(2) fails if the target exists, on every POSIX file system; renameat2(NOREPLACE) fails on Lustre.
        with as_outages(), self._temporary_file(name, data, private=private) as temporary:
            try:
                os.link(temporary, self.folder / name)
            except FileExistsError:
                # NFS says so too when the link was made and the reply to it lost.
                if temporary.stat().st_nlink == 1:
                    return False
            sync_folder((self.folder / name).parent)
            return True

    def write(self, name: str, data: bytes) -> None:
        with as_outages(), self._temporary_file(name, data) as temporary:
            temporary.rename(self.folder / name)
            sync_folder((self.folder / name).parent)

    def put(self, name: str, data: memoryview, chunk_bytes: int, threads: int = 4) -> list[int]:
        with as_outages():
            target = self._prepared_path(name)
            with explain_full_disk(len(data), target):
                checksums = write_new(target, data, chunk_bytes, threads)
            sync_folder(target.parent)
            return checksums

    def read(self, name: str, start: int = 0) -> bytes:
        with as_outages(), self._as_missing(name), open(open_file(self._checked_path(name)), "rb") as file:
            self._existed = True
            file.seek(start)
            return file.read()

    def read_into(self, name: str, start: int, buffer: memoryview) -> int:
        with as_outages(), self._as_missing(name):
            return read_at(self._checked_path(name), start, buffer)

    def sizes(self, prefix: str) -> dict[str, int]:
        return {name: info.bytes for name, info in self.listing(prefix).items()}

    def top_folders(self) -> list[str]:
        with as_outages():
            self._raise_if_gone()
            return sorted(path.name for path in self.folder.iterdir() if path.is_dir()) if self.folder.is_dir() else []

    def listing(self, prefix: str) -> dict[str, ObjectInfo]:
        objects: dict[str, ObjectInfo] = {}
        with as_outages():
            self._raise_if_gone()
            for path in files_below(self._checked_folder(prefix)):
                name = path.relative_to(self.folder).as_posix()
                if name.startswith(prefix) and not path.name.startswith(_TEMPORARY):
                    with contextlib.suppress(FileNotFoundError):
                        status = path.stat()
                        objects[name] = ObjectInfo(status.st_size, status.st_mtime)
        self._existed = self._existed or bool(objects)
        return dict(sorted(objects.items()))

    def delete(self, name: str) -> None:
        with as_outages():
            check_name(self.uri, name)
            try:
                (self._checked_folder(name) / name.rpartition("/")[2]).unlink()
            except ABSENT:
                self._raise_if_gone()

    def drop_cache(self, name: str) -> None:
        with as_outages(), self._as_missing(name):
            drop_page_cache(self._checked_path(name))

    def now(self) -> float:
        # Where the file system is a server's, it may stamp files by its own clock.
        with as_outages(), self._temporary_file("clock", b"") as temporary:
            return temporary.stat().st_mtime

    def prove(self) -> None:
        try:
            prove(self)
        except StoreUnavailable as error:
            if error.errno in _NO_LINKS:
                raise StoreUnfit(f"{self.uri}: takes no hard links ({error.strerror}), which commits need") from error
            raise

    def probe_write(self, name: str) -> None:
        with as_outages():
            fd = self._open_nameless_file()
            try:
                if os.write(fd, _PROBE) != len(_PROBE):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.uri)
                os.fsync(fd)
                os.pread(fd, len(_PROBE), 0)
            finally:
                os.close(fd)

    def abort_multipart_uploads(self, prefix: str, begun_before: float, spared: tuple[str, ...] = ()) -> int:
        return 0

    def open_log(self, prefix: str) -> BackgroundLog:
        with as_outages():
            path = self._checked_path(f"{prefix}.jsonl")
        return BackgroundLog(FileSink(path), str(path))

    @contextlib.contextmanager
    def _temporary_file(self, name: str, data: bytes, *, private: bool = False) -> Iterator[Path]:
        """A synced file with `data` next to where `name` goes; gone afterwards unless it was renamed."""
        target = self._prepared_path(name, private=private)
        temporary = target.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
        with explain_full_disk(len(data), target):
            try:
                fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
                try:
                    written = 0
                    while written < len(data):
                        written += os.write(fd, data[written:])
                    os.fsync(fd)
                finally:
                    os.close(fd)
                yield temporary
            finally:
                temporary.unlink(missing_ok=True)

    def _open_nameless_file(self) -> int:
        """A new file in the folder, or nearest to where that will be, which is gone when it is closed."""
        self._raise_if_gone()
        self._existed = self._existed or self.folder.is_dir()
        folder = next(path for path in (self.folder, *self.folder.parents) if path.is_dir())
        try:
            return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        except OSError as error:
            if error.errno not in _NOT_NAMELESS:
                raise
        path = folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        path.unlink()
        return fd

    def _checked_path(self, name: str) -> Path:
        """Where the object is, for what follows a link. Raises OSError if that would be outside of the folder."""
        check_name(self.uri, name)
        refuse_links_out(self.folder, name)
        return self.folder / name

    def _checked_folder(self, prefix: str) -> Path:
        """Where everything is whose name begins so. Raises OSError if that would be outside of the folder."""
        check_prefix(self.uri, prefix)
        folder = prefix.rpartition("/")[0]
        if folder:
            refuse_links_out(self.folder, folder)
        return self.folder / folder

    def _prepared_path(self, name: str, *, private: bool = False) -> Path:
        """Where the object goes, in a folder that is there."""
        check_name(self.uri, name)
        self._raise_if_gone()
        make_folder(self._checked_folder(name), private=private)
        self._existed = True
        return self.folder / name

    @contextlib.contextmanager
    def _as_missing(self, name: str) -> Iterator[None]:
        try:
            yield
        except ABSENT:
            self._raise_if_gone()
            raise ObjectMissing(name) from None

    def _raise_if_gone(self) -> None:
        if self._existed and not self.folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, "The folder has gone; is it still mounted?", self.uri)
