"""Large files on a POSIX path: chunks written and read at their offsets by several threads at once."""

import contextlib
import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from convoy.storage.checksum import crc32c
from convoy.storage.posix_folder import open_file
from convoy.storage.thread_map import in_parallel

_NOT_DIRECT = (errno.EINVAL, errno.ENOTSUP)

DIRECT_BYTES = 2**20
"""Reads of at least so much go past the page cache."""

BOUNCE_BYTES = 8 * 2**20
"""Memory of a thread that reads or writes so."""


def write_new(path: Path, data: memoryview, chunk_bytes: int, threads: int) -> list[int]:
    """Write a file that must not exist yet, and sync it: the CRC32C of each chunk. Gone again if it failed.

    Goes past the page cache where the file system takes that: it saves a copy, and other files keep their cache.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with _past_the_cache(lambda: os.open(path, os.O_WRONLY | os.O_DIRECT)) as direct:

            def write(index: int) -> int:
                start = index * chunk_bytes
                with data[start : start + chunk_bytes] as chunk:
                    _write_at(fd, direct, chunk, start)
                    return crc32c(chunk)

            checksums = in_parallel(write, -(-len(data) // chunk_bytes), threads)
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
        with _past_the_cache(lambda: open_file(path, os.O_DIRECT)) as direct:
            if direct is not None:
                with contextlib.suppress(_Refused):
                    return _read_direct(direct, start, buffer)
    fd = open_file(path)
    try:
        return _read(fd, start, buffer)
    finally:
        os.close(fd)


def _read(fd: int, start: int, buffer: memoryview) -> int:
    filled = 0
    while filled < len(buffer):
        with buffer[filled:] as rest:
            count = os.preadv(fd, [rest], start + filled)
        if count == 0:
            break
        filled += count
    return filled


def _read_direct(fd: int, start: int, buffer: memoryview) -> int:
    """Through pages of the thread's own: the buffer may begin anywhere. Raises _Refused."""
    filled, bounce = 0, _bounce()
    while filled < len(buffer):
        wanted = min(len(bounce), len(buffer) - filled)
        with bounce[: -(-wanted // _PAGE) * _PAGE] as pages:
            try:
                count = min(wanted, os.preadv(fd, [pages], start + filled))
            except OSError as error:
                if error.errno in _NOT_DIRECT:
                    raise _Refused from None
                raise
        _copy(buffer, filled, bounce, count)
        filled += count
        if count == 0 or count % _PAGE:  # the end of the file
            break
    return filled


def _copy(to: memoryview, at: int, source: memoryview, count: int) -> None:
    """As `to[at : at + count] = source[:count]`, but without Python's lock."""
    if count:
        target, first = ctypes.c_char.from_buffer(to, at), ctypes.c_char.from_buffer(source)
        ctypes.memmove(ctypes.byref(target), ctypes.byref(first), count)


_own = threading.local()


def _bounce() -> memoryview:
    """The thread's own pages; huge ones where there are any, for of fewer pieces the disk is asked at once."""
    held: memoryview | None = getattr(_own, "bounce", None)
    if held is None:
        pages = mmap.mmap(-1, BOUNCE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # of a kernel without
            pages.madvise(mmap.MADV_HUGEPAGE)
        held = _own.bounce = memoryview(pages)
    return held


def forget(path: Path) -> None:
    """Drop the file's pages from the page cache of this host; dirty ones are written first."""
    fd = open_file(path)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _past_the_cache(open_: Callable[[], int]) -> Iterator[int | None]:
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
    """Bytes written. Which offsets, lengths and addresses may go past the cache only the file system knows: it is asked
    for whole pages, from where they are. To copy them to better ones first takes three times the cores' time, and
    memory that training on the same host lacks; only where they may not begin there they are."""
    whole = len(data) - len(data) % _PAGE
    if direct is not None and whole and start % _PAGE == 0:
        with contextlib.suppress(_Refused), data[:whole] as pages:
            return _write_direct(direct, pages, start)
        with contextlib.suppress(_Refused), _bounce()[: min(whole, BOUNCE_BYTES)] as pages:
            pages[:] = data[: len(pages)]
            return _write_direct(direct, pages, start)
    return os.pwrite(fd, data, start)


_PAGE = 4096


class _Refused(Exception):
    """The file system does not take this one past the cache."""


def _write_direct(fd: int, pages: memoryview, start: int) -> int:
    try:
        return os.pwrite(fd, pages, start)
    except OSError as error:
        if error.errno in _NOT_DIRECT:
            raise _Refused from None
        raise
