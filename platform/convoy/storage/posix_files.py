"""Files on a POSIX path: folders that outlive a crash, errors that say what they are, and large files whose chunks
several threads write and read at their offsets."""

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from convoy.storage.base import StoreUnavailable
from convoy.storage.checksum import crc32c
from convoy.storage.thread_map import in_parallel

_NOT_DIRECT = (errno.EINVAL, errno.ENOTSUP)

DIRECT_BYTES = 2**20
"""Reads of at least so much go past the page cache."""

BOUNCE_BYTES = 8 * 2**20
"""Memory of a thread that reads or writes so."""

_PAGE = 4096

# A name below a file, or the name of a folder, is no object's name either.
ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class _DirectIoRefused(Exception):
    """The file system does not take this read or write past the page cache."""


def refuse_links_out(folder: Path, name: str) -> None:
    """Raise OSError where a symbolic link on the way from the folder to `name` leads out of it.

    The folder itself may be a link: to a file system that is mounted elsewhere, for instance. What swaps a folder for a
    link at this very moment is not seen.
    """
    path = str(folder)
    for component in name.split("/"):
        path = f"{path}/{component}"
        try:
            os.readlink(path)  # noqa: PTH115 - quick; unlike lstat, it asks a file server for no attributes
        except OSError as error:
            if error.errno == errno.EINVAL:  # it is not a link
                continue
            return  # it is not there, or cannot be reached: whoever opens it gets the error
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise OSError(errno.EXDEV, f"The link leads out of {folder}", path)


def make_folder(folder: Path, *, private: bool = False) -> None:
    """Make the folder and its parents so that they outlive a crash. private: for its owner only."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(0o700 if private else 0o777, exist_ok=True)
        sync_folder(folder.parent)
    elif private and stat.S_IMODE(folder.stat().st_mode) != 0o700:
        with contextlib.suppress(OSError):  # another user's; what is in it is private itself
            folder.chmod(0o700)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def files_below(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder, onerror=_raise_unless_absent):
        for name in names:
            yield Path(parent) / name


def _raise_unless_absent(error: OSError) -> None:
    # By default os.walk passes over a folder that it cannot read: an outage would look like an empty store.
    if not isinstance(error, ABSENT):
        raise error


def open_file(path: Path, flags: int = 0) -> int:
    """A descriptor to read a regular file by. Raises OSError for anything else: to open a pipe could take for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "This is not a regular file", str(path))
        os.set_blocking(fd, True)  # only the opening was not to wait
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def explain_full_disk(n_bytes: int, path: Path) -> Iterator[None]:
    """Have the error of a full file system, or quota, say which file had no room, and how much it needed."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        needed = f"{os.strerror(error.errno)}: {n_bytes} bytes are needed"
        if error.errno == errno.ENOSPC:
            with contextlib.suppress(OSError):
                needed += f", {shutil.disk_usage(path.parent).free} are free"
        raise OSError(error.errno, needed, str(path)) from error


@contextlib.contextmanager
def as_outages() -> Iterator[None]:
    """Any error of the file system is StoreUnavailable."""
    try:
        yield
    except StoreUnavailable:
        raise
    except OSError as error:
        raise StoreUnavailable(error.errno, error.strerror or str(error), error.filename) from error


def write_new(path: Path, data: memoryview, chunk_bytes: int, threads: int) -> list[int]:
    """Write a file that must not exist yet, and sync it: the CRC32C of each chunk. Gone again if it failed.

    Goes past the page cache where the file system takes that: it saves a copy, and other files keep their cache.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with _direct_descriptor(lambda: os.open(path, os.O_WRONLY | os.O_DIRECT)) as direct:

            def write_chunk(index: int) -> int:
                start = index * chunk_bytes
                with data[start : start + chunk_bytes] as chunk:
                    _write_at(fd, direct, chunk, start)
                    return crc32c(chunk)

            checksums = in_parallel(write_chunk, -(-len(data) // chunk_bytes), threads)
        os.fsync(fd)
        return checksums
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()  # a full disk stays full otherwise
        raise
    finally:
        os.close(fd)


def read_at(path: Path, start: int, buffer: memoryview) -> int:
    """Fill the buffer from byte `start` on; how many bytes there were.

    What is long goes past the page cache where the file system takes that: many threads at their own places of a file
    are poor readers ahead, and what a restore or a check reads is not read again soon.
    """
    if len(buffer) >= DIRECT_BYTES and start % _PAGE == 0:
        with _direct_descriptor(lambda: open_file(path, os.O_DIRECT)) as direct:
            if direct is not None:
                with contextlib.suppress(_DirectIoRefused):
                    return _read_direct(direct, start, buffer)
    fd = open_file(path)
    try:
        return _read_buffered(fd, start, buffer)
    finally:
        os.close(fd)


def _read_buffered(fd: int, start: int, buffer: memoryview) -> int:
    filled = 0
    while filled < len(buffer):
        with buffer[filled:] as rest:
            count = os.preadv(fd, [rest], start + filled)
        if count == 0:
            break
        filled += count
    return filled


def _read_direct(fd: int, start: int, buffer: memoryview) -> int:
    """Through pages of the thread's own: the buffer may begin anywhere. Raises _DirectIoRefused."""
    filled, bounce = 0, _bounce_buffer()
    while filled < len(buffer):
        wanted = min(len(bounce), len(buffer) - filled)
        with bounce[: -(-wanted // _PAGE) * _PAGE] as pages:
            try:
                count = min(wanted, os.preadv(fd, [pages], start + filled))
            except OSError as error:
                if error.errno in _NOT_DIRECT:
                    raise _DirectIoRefused from None
                raise
        _copy_bytes(buffer, filled, bounce, count)
        filled += count
        if count == 0 or count % _PAGE:  # the end of the file
            break
    return filled


def _copy_bytes(to: memoryview, at: int, source: memoryview, count: int) -> None:
    """As `to[at : at + count] = source[:count]`, but without Python's lock."""
    if count:
        target, first = ctypes.c_char.from_buffer(to, at), ctypes.c_char.from_buffer(source)
        ctypes.memmove(ctypes.byref(target), ctypes.byref(first), count)


_own = threading.local()


def _bounce_buffer() -> memoryview:
    """The thread's own pages; huge ones where there are any, so that the disk gets fewer requests."""
    held: memoryview | None = getattr(_own, "bounce", None)
    if held is None:
        pages = mmap.mmap(-1, BOUNCE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # of a kernel without
            pages.madvise(mmap.MADV_HUGEPAGE)
        held = _own.bounce = memoryview(pages)
    return held


def drop_page_cache(path: Path) -> None:
    """Drop the file's pages from the page cache of this host; dirty ones are written first."""
    fd = open_file(path)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _direct_descriptor(open_: Callable[[], int]) -> Iterator[int | None]:
    """The file as `open_` opens it with O_DIRECT; None where there is no such thing."""
    try:
        fd = open_()
    except OSError as error:
        if error.errno not in _NOT_DIRECT:
            raise
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _write_at(fd: int, direct: int | None, data: memoryview, start: int) -> None:
    written = 0
    while written < len(data):
        with data[written:] as rest:
            written += _write_some(fd, direct, rest, start + written)


def _write_some(fd: int, direct: int | None, data: memoryview, start: int) -> int:
    """Bytes written. Which offsets, lengths and addresses may bypass the cache only the file system knows: it is asked
    for whole pages, from where they are. To copy them to better ones first takes three times the cores' time, and
    memory that training on the same host lacks; only where they may not begin there they are."""
    whole = len(data) - len(data) % _PAGE
    if direct is not None and whole and start % _PAGE == 0:
        with contextlib.suppress(_DirectIoRefused), data[:whole] as pages:
            return _write_direct(direct, pages, start)
        with contextlib.suppress(_DirectIoRefused), _bounce_buffer()[: min(whole, BOUNCE_BYTES)] as pages:
            pages[:] = data[: len(pages)]
            return _write_direct(direct, pages, start)
    return os.pwrite(fd, data, start)


def _write_direct(fd: int, pages: memoryview, start: int) -> int:
    try:
        return os.pwrite(fd, pages, start)
    except OSError as error:
        if error.errno in _NOT_DIRECT:
            raise _DirectIoRefused from None
        raise
