"""Storage that really fails, below a store: what was there stays whole, errors are outages, and then it goes on."""

import mmap
import os
import random
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest

from convoy.drills.testbed.mounts import MIB, Disk, mounted_tmpfs
from convoy.gang.workers.processes import state_of
from convoy.storage import Store, StoreUnavailable, open_store
from tests.gang.tasks import wait_for
from tests.system.disks import filled, read_only

pytestmark = pytest.mark.system

DATA = random.Random(1).randbytes(6 * MIB)
CHUNK = MIB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path) as disk:
        yield disk


WRITES: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put("shards/b.bin", memoryview(DATA), CHUNK),
    "create": lambda store: store.create("commits/2.json", DATA),
    "write": lambda store: store.write("commits/1.json", DATA),
}


def store_with_a_commit(folder: Path) -> Store:
    store = open_store(str(folder / "job"))
    store.put("shards/a.bin", memoryview(DATA), CHUNK)
    store.create("commits/1.json", b"commit")
    return store


def still_holds_the_commit(store: Store) -> bool:
    whole = store.read("shards/a.bin") == DATA and store.read("commits/1.json") == b"commit"
    return whole and store.sizes("") == {"commits/1.json": 6, "shards/a.bin": len(DATA)}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_disk_refuses_what_it_cannot_hold_and_keeps_nothing_of_it(
    tmp_path: Path, disk: Disk, kind: str, write: str
) -> None:
    with mounted_tmpfs(tmp_path / "memory", megabytes=16) as memory:
        folder = memory if kind == "tmpfs" else disk.path
        store = store_with_a_commit(folder)
        with filled(folder), pytest.raises(StoreUnavailable, match="No space left on device"):
            WRITES[write](store)
        assert still_holds_the_commit(store)
        assert [path.name for path in folder.rglob(".tmp-*")] == []
        WRITES[write](store)


@pytest.mark.parametrize("write", [*WRITES, "delete", "now"])
def test_a_disk_that_turned_read_only_is_unavailable_to_writers_and_fine_for_readers(disk: Disk, write: str) -> None:
    store = store_with_a_commit(disk.path)
    calls = WRITES | {"delete": lambda store: store.delete("commits/1.json"), "now": lambda store: store.now()}
    with read_only(disk):
        with pytest.raises(StoreUnavailable, match="Read-only file system"):
            calls[write](store)
        assert still_holds_the_commit(store)
    calls[write](store)


def test_a_frozen_disk_holds_its_writer_but_no_reader_and_what_it_wrote_is_no_commit(disk: Disk) -> None:
    store = store_with_a_commit(disk.path)
    writer = get_context("fork").Process(target=WRITES["create"], args=(store,))
    with disk.frozen():
        writer.start()
        assert writer.pid is not None
        wait_for("the writer to hang", lambda: state_of(writer.pid or 0) == "uninterruptible")
        assert still_holds_the_commit(store)
        writer.kill()
        writer.join(timeout=0.2)
        assert writer.exitcode is None  # that is why it is abandoned, not joined
        assert state_of(writer.pid) == "uninterruptible"
    writer.join(timeout=20)
    assert writer.exitcode == -9
    assert still_holds_the_commit(store)
    assert store.create("commits/2.json", b"next")


def cached_bytes(path: Path) -> int:
    """How much of the file's begin is in the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(fd, [bytearray(CHUNK)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return 0
    finally:
        os.close(fd)


def test_what_is_dropped_from_the_cache_is_read_from_the_disk_again(disk: Disk) -> None:
    store = store_with_a_commit(disk.path)
    path = disk.path / "job" / "shards" / "a.bin"
    store.read("shards/a.bin")
    assert cached_bytes(path) > 0
    store.drop_cache("shards/a.bin")
    assert cached_bytes(path) == 0
    assert store.read("shards/a.bin") == DATA


def test_a_large_object_of_whole_pages_goes_past_the_cache(disk: Disk) -> None:
    buffer = mmap.mmap(-1, len(DATA))
    buffer[:] = DATA
    with memoryview(buffer) as view:
        open_store(str(disk.path)).put("object", view, CHUNK)
    assert cached_bytes(disk.path / "object") == 0
    assert (disk.path / "object").read_bytes() == DATA


@pytest.mark.parametrize("call", [*WRITES, "listing", "read"])
def test_an_unmounted_disk_is_away_and_nothing_is_written_below_its_mount_point(disk: Disk, call: str) -> None:
    store = store_with_a_commit(disk.path)
    calls = WRITES | {"listing": lambda store: store.listing(""), "read": lambda store: store.read("commits/1.json")}
    disk.unmount()
    with pytest.raises(StoreUnavailable, match="is it still mounted"):
        calls[call](store)
    assert list(disk.path.iterdir()) == []
    disk.mount()
    assert still_holds_the_commit(store)
    calls[call](store)
