"""Long reads go past the page cache, into any buffer, from anywhere in a file; where that is not taken they do not."""

import errno
import mmap
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from convoy.storage import posix_files
from convoy.storage.posix_files import BOUNCE_BYTES, DIRECT_BYTES, read_at

PAGE = 4096


@pytest.fixture
def direct_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the length of each read from a file that was opened to go past the cache."""
    seen, preadv = list[int](), os.preadv

    def spying(fd: int, buffers: list[memoryview], offset: int) -> int:
        count = preadv(fd, buffers, offset)
        if _is_direct(fd):
            seen.append(count)
        return count

    monkeypatch.setattr(os, "preadv", spying)
    return seen


def _is_direct(fd: int) -> bool:
    flags = next(line for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines() if line.startswith("flags"))
    return bool(int(flags.split()[1], 8) & os.O_DIRECT)


def some_file(folder: Path, length: int) -> tuple[Path, bytes]:
    path, data = folder / "file", random.Random(length).randbytes(length)
    path.write_bytes(data)
    return path, data


@pytest.mark.parametrize("over", [0, PAGE - 1, 12_345])
@pytest.mark.parametrize("start", [0, BOUNCE_BYTES])
@pytest.mark.parametrize("shift", [0, 1])
def test_a_long_read_gives_what_there_is_wherever_the_buffer_begins(
    tmp_path: Path, direct_reads: list[int], start: int, over: int, shift: int
) -> None:
    path, data = some_file(tmp_path, BOUNCE_BYTES + DIRECT_BYTES + over)
    left = len(data) - start
    buffer = bytearray(b"-" * (shift + max(left, DIRECT_BYTES) + 10))
    with memoryview(buffer) as view:
        assert read_at(path, start, view[shift:]) == left
    assert buffer == b"-" * shift + data[start:] + b"-" * (len(buffer) - shift - left)
    assert direct_reads


def test_no_more_is_read_than_the_buffer_takes(tmp_path: Path, direct_reads: list[int]) -> None:
    path, data = some_file(tmp_path, 3 * DIRECT_BYTES)
    buffer = bytearray(DIRECT_BYTES + 7)
    assert read_at(path, PAGE, memoryview(buffer)) == len(buffer)
    assert buffer == data[PAGE : PAGE + len(buffer)]
    assert direct_reads


@pytest.mark.parametrize(("start", "length"), [(0, DIRECT_BYTES - 1), (1, DIRECT_BYTES)])
def test_a_short_read_or_one_from_within_a_page_is_an_ordinary_one(
    tmp_path: Path, direct_reads: list[int], start: int, length: int
) -> None:
    path, data = some_file(tmp_path, 2 * DIRECT_BYTES)
    buffer = bytearray(length)
    assert read_at(path, start, memoryview(buffer)) == length
    assert buffer == data[start : start + length]
    assert not direct_reads


@pytest.mark.parametrize("at", ["open", "read"])
def test_where_the_file_system_takes_no_such_reads_they_are_ordinary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    path, data = some_file(tmp_path, 2 * DIRECT_BYTES + 5)
    opened, preadv = os.open, os.preadv

    def refusing_open(name: Path, flags: int, mode: int = 0o777) -> int:
        if at == "open" and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(name, flags, mode)

    def refusing_read(fd: int, buffers: list[memoryview], offset: int) -> int:
        if at == "read" and _is_direct(fd):
            raise OSError(errno.EINVAL, "Invalid argument")
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "open", refusing_open)
    monkeypatch.setattr(os, "preadv", refusing_read)
    buffer = bytearray(len(data))
    assert read_at(path, 0, memoryview(buffer)) == len(data)
    assert buffer == data


def test_an_error_of_the_storage_is_none_of_the_file_system_s_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = some_file(tmp_path, DIRECT_BYTES)

    def failing(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(OSError, match="Input/output error"):
        read_at(path, 0, memoryview(bytearray(DIRECT_BYTES)))


def test_it_sees_what_was_written_through_the_cache_a_moment_ago(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * DIRECT_BYTES))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[DIRECT_BYTES : DIRECT_BYTES + 5] = b"fresh"  # a dirty page, that no call has written out
        buffer = bytearray(DIRECT_BYTES)
        read_at(path, DIRECT_BYTES, memoryview(buffer))
    assert buffer[:5] == b"fresh"


def test_each_thread_reads_through_pages_of_its_own(tmp_path: Path) -> None:
    path, data = some_file(tmp_path, 32 * DIRECT_BYTES)
    buffer = bytearray(len(data))

    def read(index: int) -> int:
        with memoryview(buffer)[index * DIRECT_BYTES : (index + 1) * DIRECT_BYTES] as part:
            return read_at(path, index * DIRECT_BYTES, part)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(32))) == [DIRECT_BYTES] * 32
    assert buffer == data


def test_a_file_is_written_past_the_cache_and_read_back_so(tmp_path: Path, direct_reads: list[int]) -> None:
    data = random.Random(0).randbytes(2 * BOUNCE_BYTES + 99)
    posix_files.write_new(tmp_path / "file", memoryview(data), BOUNCE_BYTES, 2)
    buffer = bytearray(len(data))
    assert read_at(tmp_path / "file", 0, memoryview(buffer)) == len(data)
    assert buffer == data
    assert sum(direct_reads) >= len(data)
