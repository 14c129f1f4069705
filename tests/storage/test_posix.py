"""What only a folder can do or suffer: crash leftovers, permissions, full disks."""

import errno
import mmap
import multiprocessing
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from convoy.storage import ObjectMissing, Store, StoreUnavailable, StoreUnfit, open_store
from convoy.storage.posix import PosixStore
from tests.ranks import KILLED, on_ranks

NOBODY = 65534


def become_nobody() -> None:
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def error_of(call: Callable[[], object]) -> str:
    try:
        return f"returned {call()!r}"
    except (StoreUnavailable, ObjectMissing) as error:
        return type(error).__name__


def test_of_eight_concurrent_processes_exactly_one_creates(tmp_path: Path) -> None:
    rounds = [multiprocessing.get_context("fork").Barrier(8) for _ in range(5)]

    def create(rank: int) -> list[bool]:
        made = []
        for number, together in enumerate(rounds):
            together.wait(timeout=30)
            made.append(PosixStore(tmp_path).create(f"commits/{number}.json", b"creator %d" % rank))
        return made

    for number, won in enumerate(zip(*on_ranks(8, create), strict=True)):
        assert won.count(True) == 1
        assert PosixStore(tmp_path).read(f"commits/{number}.json") == b"creator %d" % won.index(True)
    assert list(PosixStore(tmp_path).sizes("")) == [f"commits/{number}.json" for number in range(5)]


def test_a_writer_killed_before_its_rename_leaves_nothing_that_is_listed(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)

    def die_half_way(_: int) -> None:
        with store._temporary_file("shards/part", b"half a shard"):
            os.kill(os.getpid(), signal.SIGKILL)

    assert on_ranks(1, die_half_way, may_die=True) == [KILLED]
    assert len(list(tmp_path.rglob(".tmp-*"))) == 1
    assert store.sizes("") == {}
    assert store.sizes("shards/") == {}
    assert store.create("shards/part", b"whole")
    assert store.sizes("") == {"shards/part": 5}


def test_a_finished_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.create("a/one", b"1")
    store.create("a/one", b"2")
    store.write("a/one", b"3")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["one"]


FORBIDDEN: dict[str, Callable[[Store], object]] = {
    "create": lambda store: store.create("folder/object", b"x"),
    "write": lambda store: store.write("folder/object", b"x"),
    "read": lambda store: store.read("folder/object"),
    "read what is not there": lambda store: store.read("folder/nothing"),
    "delete": lambda store: store.delete("folder/object"),
    "sizes": lambda store: store.sizes("folder/"),
    "sizes from above": lambda store: store.sizes(""),
    "appender": lambda store: store.open_log("folder/log"),
    "put": lambda store: store.put("folder/new", memoryview(b"x"), 1024),
    "read into": lambda store: store.read_into("folder/object", 0, memoryview(bytearray(1))),
    "drop cache": lambda store: store.drop_cache("folder/object"),
}


@pytest.mark.parametrize("operation", FORBIDDEN)
def test_a_folder_without_permission_is_unavailable_and_nothing_is_missing(tmp_path: Path, operation: str) -> None:
    store = open_store(str(tmp_path / "store"))
    store.write("folder/object", b"x")
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    (tmp_path / "store" / "folder").chmod(0)

    def error(_: int) -> str:
        become_nobody()
        return error_of(lambda: FORBIDDEN[operation](store))

    try:
        assert on_ranks(1, error) == ["StoreUnavailable"]
    finally:
        (tmp_path / "store" / "folder").chmod(0o755)


@pytest.mark.parametrize("operation", ["create", "write", "appender", "put"])
def test_a_file_where_a_folder_is_needed_is_unavailable(tmp_path: Path, operation: str) -> None:
    (tmp_path / "folder").write_text("a file")
    with pytest.raises(StoreUnavailable, match=r"(File exists|Not a directory): .*/folder"):
        FORBIDDEN[operation](PosixStore(tmp_path))


def test_lines_that_a_full_disk_refuses_wait_until_there_is_room(tmp_path: Path) -> None:
    def fill_up(_: int) -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        log = PosixStore(tmp_path).open_log("log")
        log.append(b"before")
        resource.setrlimit(resource.RLIMIT_FSIZE, (12, hard))
        log.append(b"does not fit")
        refused = error_of(log.flush)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        log.append(b"after")
        log.close()
        return refused

    assert on_ranks(1, fill_up) == ["StoreUnavailable"]
    assert PosixStore(tmp_path).read("log.jsonl") == b"before\ndoes \ndoes not fit\nafter\n"


@pytest.mark.parametrize("operation", ["create", "write", "put", "appender"])
def test_a_full_disk_is_told_with_the_file_what_it_needed_and_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def append(name: str, data: bytes) -> None:
        log = store.open_log(name.removesuffix(".jsonl"))
        log.append(data[:-1])
        log.flush()

    store = PosixStore(tmp_path)
    calls = {"create": store.create, "write": store.write, "appender": append}
    calls["put"] = lambda name, data: store.put(name, memoryview(data), 2**20)
    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6 - 4096, 4096))
    told = rf"No space left on device: 10000 bytes are needed, 4096 are free: '{tmp_path}/a/object.jsonl'$"
    with pytest.raises(StoreUnavailable, match=told):
        calls[operation]("a/object.jsonl", b"x" * 10_000)


def test_a_line_torn_by_a_crash_does_not_swallow_the_next_life(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b"whole\nhal")
    log = PosixStore(tmp_path).open_log("log")
    log.append(b"new life")
    log.close()
    assert (tmp_path / "log.jsonl").read_bytes() == b"whole\nhal\nnew life\n"


def test_a_line_is_in_the_file_a_moment_after_it_was_appended_without_a_flush(tmp_path: Path) -> None:
    log = PosixStore(tmp_path).open_log("log")
    log.append(b"now")
    deadline = time.monotonic() + 10
    while not PosixStore(tmp_path).read("log.jsonl") and time.monotonic() < deadline:
        time.sleep(0.001)
    assert PosixStore(tmp_path).read("log.jsonl") == b"now\n"
    log.close()


def test_a_file_uri_is_a_folder(tmp_path: Path) -> None:
    open_store(f"file://{tmp_path}").write("a", b"1")
    assert (tmp_path / "a").read_bytes() == b"1"


def test_a_relative_folder_stays_where_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("jobs")
    monkeypatch.chdir("/")
    store.write("a", b"1")
    assert (tmp_path / "jobs" / "a").read_bytes() == b"1"


@pytest.mark.parametrize("aligned", [True, False], ids=["whole pages", "an odd address"])
def test_a_put_that_fails_takes_its_file_along(tmp_path: Path, aligned: bool) -> None:
    chunk = 2**16

    def fill_up(_: int) -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        buffer = mmap.mmap(-1, 4 * chunk)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * chunk, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        data = memoryview(buffer)[not aligned : 4 * chunk]
        return error_of(lambda: PosixStore(tmp_path).put("shards/a.bin", data, chunk, threads=2))

    assert on_ranks(1, fill_up) == ["StoreUnavailable"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("count", [3 * 4096, 3 * 4096 + 1, 2 * 4096 - 1, 1])
@pytest.mark.parametrize("address", [0, 512, 1])
def test_bytes_at_any_address_and_of_any_length_are_put_as_they_are(tmp_path: Path, count: int, address: int) -> None:
    buffer = mmap.mmap(-1, 5 * 4096)
    buffer[:] = random.Random(1).randbytes(len(buffer))
    with memoryview(buffer) as view, view[address : address + count] as data:
        PosixStore(tmp_path).put("object", data, 4096, threads=2)
        assert (tmp_path / "object").read_bytes() == data


GONE: dict[str, Callable[[Store], object]] = {
    **{name: call for name, call in FORBIDDEN.items() if name != "appender"},
    "now": lambda store: store.now(),
    "prove": lambda store: store.prove(),
}


@pytest.mark.parametrize("operation", GONE)
@pytest.mark.parametrize("seen_by", ["writing", "reading", "listing"])
def test_a_folder_that_was_there_and_has_gone_is_away_not_empty(tmp_path: Path, operation: str, seen_by: str) -> None:
    PosixStore(tmp_path / "job").write("folder/object", b"x")
    store = PosixStore(tmp_path / "job")
    {
        "writing": lambda: store.write("JOB.json", b"{}"),
        "reading": lambda: store.read("folder/object"),
        "listing": lambda: store.sizes(""),
    }[seen_by]()
    (tmp_path / "job").rename(tmp_path / "unmounted")
    with pytest.raises(StoreUnavailable, match="is it still mounted"):
        GONE[operation](store)
    assert [path.name for path in tmp_path.iterdir()] == ["unmounted"]
    (tmp_path / "unmounted").rename(tmp_path / "job")
    assert store.read("folder/object") == b"x"


def test_a_file_system_without_hard_links_is_unfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")  # as FAT does

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(StoreUnfit, match="no hard links"):
        PosixStore(tmp_path).prove()


def test_a_file_system_whose_links_replace_is_unfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda source, target: shutil.copyfile(source, target))
    with pytest.raises(StoreUnfit, match="replaces"):
        PosixStore(tmp_path).prove()
    assert PosixStore(tmp_path).sizes("") == {}


def test_a_link_whose_reply_was_lost_is_known_to_be_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def applied_but_exists(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")  # what NFS answers to the request it saw twice

    store = PosixStore(tmp_path)
    monkeypatch.setattr(os, "link", applied_but_exists)
    assert store.create("commit", b"ours")
    monkeypatch.setattr(os, "link", link)
    assert not store.create("commit", b"theirs")


@pytest.mark.parametrize("bytes_read", [10, 2**20])
def test_a_pipe_in_place_of_an_object_is_an_outage_and_not_waited_for(bytes_read: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    store = open_store(str(tmp_path))
    reads: list[Callable[[], object]] = [
        lambda: store.read("pipe"),
        lambda: store.read_into("pipe", 0, memoryview(bytearray(bytes_read))),
        lambda: store.drop_cache("pipe"),
        lambda: store.open_log("log"),
    ]
    os.mkfifo(tmp_path / "log.jsonl")
    assert [error_of(read) for read in reads] == ["StoreUnavailable"] * 4


def test_a_folder_for_a_secret_that_others_could_enter_is_closed(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir(mode=0o755)
    open_store(str(tmp_path)).create("tokens/a", b"secret", private=True)
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o700
