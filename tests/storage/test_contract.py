"""What every store promises, asked of a folder, of S3 and of Google's alike."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from convoy.storage import ObjectMissing, Store, StoreUnavailable, open_store
from convoy.storage.checksum import crc32c
from convoy.storage.gcs import GcsStore
from convoy.storage.posix import PosixStore
from convoy.storage.s3 import S3Store

MIB = 2**20


def test_the_uri_decides_the_kind_of_store(store: Store, store_uri: str) -> None:
    kinds = {"s3": S3Store, "gs": GcsStore}
    assert isinstance(store, kinds.get(store_uri.partition("://")[0], PosixStore))
    assert store.uri == store_uri


def test_what_is_created_is_read(store: Store) -> None:
    assert store.create("a/b/c.json", b"one\x00two")
    assert store.read("a/b/c.json") == b"one\x00two"


def test_an_empty_object_is_an_object(store: Store) -> None:
    assert store.create("empty", b"")
    assert store.read("empty") == b""
    assert store.sizes("") == {"empty": 0}


@pytest.mark.parametrize("second", [b"second", b"first"], ids=["other bytes", "the same bytes"])
def test_a_second_creation_is_refused_and_changes_nothing(store: Store, second: bytes) -> None:
    assert store.create("commit", b"first")
    store.write("written", b"first")
    for name in ("commit", "written"):
        assert not store.create(name, second)
        assert store.read(name) == b"first"


def test_a_private_object_is_created_once_and_read_like_any_other(store: Store) -> None:
    assert store.create("tokens/one", b"secret", private=True)
    assert not store.create("tokens/one", b"other", private=True)
    assert (store.read("tokens/one"), list(store.sizes("tokens/"))) == (b"secret", ["tokens/one"])


def test_a_deleted_object_can_be_created_again(store: Store) -> None:
    store.create("name", b"old")
    store.delete("name")
    assert store.create("name", b"new")
    assert store.read("name") == b"new"


def test_of_eight_concurrent_creators_exactly_one_wins_and_its_bytes_are_there(store_uri: str) -> None:
    stores = [open_store(store_uri) for _ in range(8)]
    for round_number in range(5):
        name, together = f"generations/{round_number}.json", Barrier(8)

        def create(i: int, name: str = name, together: Barrier = together) -> bool:
            together.wait(timeout=30)
            return stores[i].create(name, b"creator %d" % i)

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(create, range(8)))
        assert won.count(True) == 1
        assert stores[0].read(name) == b"creator %d" % won.index(True)


def test_writing_replaces(store: Store) -> None:
    store.write("state", b"a long first version")
    store.write("state", b"short")
    assert store.read("state") == b"short"


def some_bytes(count: int) -> bytes:
    """No two windows of it are alike, so that no two chunks can change places unseen."""
    return b"".join(number.to_bytes(8, "little") for number in range(-(-count // 8)))[:count]


def filled(store: Store, name: str, start: int, count: int) -> bytes:
    buffer = bytearray(count)
    return bytes(buffer[: store.read_into(name, start, memoryview(buffer))])


@pytest.mark.parametrize(
    ("start", "count", "there"),
    [(0, 10, b"0123456789"), (3, 4, b"3456"), (6, 99, b"6789"), (10, 5, b""), (99, 5, b""), (0, 0, b"")],
)
def test_reading_gives_what_there_is_from_a_byte_on(store: Store, start: int, count: int, there: bytes) -> None:
    store.write("digits", b"0123456789")
    assert store.read("digits", start) == b"0123456789"[start:]
    assert filled(store, "digits", start, count) == there


@pytest.mark.parametrize("name", ["nothing", "no/folder/either", "folder", "file/below", "fil"])
def test_a_missing_object_is_missing_and_named(store: Store, name: str) -> None:
    store.write("folder/object", b"x")
    store.write("file", b"x")
    for read in (lambda: store.read(name), lambda: store.read(name, 5), lambda: filled(store, name, 0, 10)):
        with pytest.raises(ObjectMissing) as caught:
            read()
        assert str(caught.value) == f"no object {name}"


def test_a_store_in_which_nothing_was_written_is_empty(store: Store) -> None:
    assert store.sizes("") == {}
    assert store.sizes("events/") == {}
    with pytest.raises(ObjectMissing):
        store.read("JOB.json")


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("", ["JOB.json", "events/0/a.jsonl", "events/0/b.jsonl", "events/10/a.jsonl", "eventsource"]),
        ("events/", ["events/0/a.jsonl", "events/0/b.jsonl", "events/10/a.jsonl"]),
        ("events", ["events/0/a.jsonl", "events/0/b.jsonl", "events/10/a.jsonl", "eventsource"]),
        ("events/1", ["events/10/a.jsonl"]),
        ("events/0/a.jsonl", ["events/0/a.jsonl"]),
        ("eve", ["events/0/a.jsonl", "events/0/b.jsonl", "events/10/a.jsonl", "eventsource"]),
        ("nowhere/", []),
        ("JOB.json/below", []),
    ],
)
def test_sizes_lists_every_object_with_the_prefix_in_name_order(store: Store, prefix: str, names: list[str]) -> None:
    for name in ["eventsource", "events/10/a.jsonl", "events/0/b.jsonl", "JOB.json", "events/0/a.jsonl"]:
        store.write(name, b"x" * len(name))
    assert list(store.sizes(prefix).items()) == [(name, len(name)) for name in names]


def test_names_are_relative_to_the_store_and_its_neighbours_are_not_listed(store: Store, store_uri: str) -> None:
    store.write("mine", b"x")
    open_store(f"{store_uri}-neighbour").write("theirs", b"x")
    assert store.sizes("") == {"mine": 1}


def test_deleting_removes_only_that_object(store: Store) -> None:
    store.write("a", b"1")
    store.write("ab", b"2")
    store.delete("a")
    assert store.sizes("") == {"ab": 1}


@pytest.mark.parametrize("name", ["nothing", "no/folder", "folder", "file/below"])
def test_deleting_what_is_absent_is_no_error(store: Store, name: str) -> None:
    store.write("folder/object", b"x")
    store.write("file", b"x")
    store.delete(name)
    assert store.sizes("") == {"file": 1, "folder/object": 1}


def appended(store: Store, prefix: str) -> bytes:
    return b"".join(store.read(name) for name in store.sizes(prefix))


def test_a_probe_leaves_nothing_that_deleting_it_does_not_remove(store: Store) -> None:
    store.write("a/b", b"1")
    for _ in range(3):
        store.probe_write("probes/7")
    store.delete("probes/7")
    assert store.sizes("") == {"a/b": 1}


def test_appended_lines_are_visible_after_a_flush_in_their_order(store: Store) -> None:
    log = store.open_log("events/0/agent")
    log.append(b"one")
    log.append(b"two")
    log.flush()
    assert appended(store, "events/0/") == b"one\ntwo\n"
    log.append(b"three")
    log.close()
    assert appended(store, "events/0/") == b"one\ntwo\nthree\n"
    assert all(name.endswith(".jsonl") for name in store.sizes("events/0/agent"))


def test_flushing_nothing_writes_no_segment_and_closing_twice_is_no_error(store: Store) -> None:
    log = store.open_log("events/0/agent")
    log.flush()
    log.close()
    log.close()
    assert appended(store, "events/") == b""


def test_a_log_opened_again_goes_on_behind_what_is_there(store: Store) -> None:
    for line in (b"first life", b"second life", b"third life"):
        log = store.open_log("events/0/agent")
        log.append(line)
        log.close()
    assert appended(store, "events/") == b"first life\nsecond life\nthird life\n"


def test_lines_of_many_threads_are_all_there_and_whole(store: Store) -> None:
    log = store.open_log("events/0/agent")
    lines = {b"%d-%d " % (thread, i) + b"x" * 200 for thread in range(8) for i in range(50)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(log.append, lines))
    log.close()
    written = appended(store, "events/").splitlines()
    assert len(written) == len(lines)
    assert set(written) == lines


@pytest.mark.parametrize(
    ("count", "chunk", "threads"),
    [(0, 1024, 4), (1, 1024, 4), (1024, 1024, 4), (12_345, 1024, 1), (3 * 5 * MIB + 7, 5 * MIB, 3), (11 * MIB, MIB, 2)],
)
def test_what_is_put_is_read_and_each_chunk_has_its_checksum(
    store: Store, count: int, chunk: int, threads: int
) -> None:
    data = some_bytes(count)
    checksums = store.put("shards/a.bin", memoryview(data), chunk, threads)
    assert checksums == [crc32c(data[at : at + chunk]) for at in range(0, count, chunk)]
    assert store.read("shards/a.bin") == data
    assert store.sizes("") == {"shards/a.bin": count}


def test_the_checksum_is_crc32c_and_goes_on_from_a_previous_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the CRC catalogue
    assert crc32c(memoryview(b"6789"), crc32c(bytearray(b"12345"))) == 0xE3069283


@pytest.mark.parametrize("count", [10, 6 * MIB])
def test_a_put_replaces_nothing(store: Store, count: int) -> None:
    store.put("name", memoryview(b"first" * count), 5 * MIB)
    with pytest.raises(StoreUnavailable, match="name"):
        store.put("name", memoryview(b"other" * count), 5 * MIB)
    assert store.read("name") == b"first" * count


def test_a_buffer_that_was_put_can_be_given_away_at_once(store: Store) -> None:
    buffer = bytearray(some_bytes(3 * 5 * MIB))
    with memoryview(buffer) as view:
        store.put("name", view, 5 * MIB)
    buffer.clear()  # raises BufferError while anything still points into it
    assert store.read("name") == some_bytes(3 * 5 * MIB)


def test_reading_into_a_buffer_leaves_the_rest_of_it_alone(store: Store) -> None:
    store.write("short", b"ab")
    buffer = bytearray(b"-----")
    assert store.read_into("short", 0, memoryview(buffer)[1:4]) == 2
    assert buffer == b"-ab--"


def test_many_threads_read_ranges_of_one_object_at_once(store: Store) -> None:
    data = some_bytes(64 * 40_000)
    store.write("object", data)
    buffer = bytearray(len(data))

    def read(index: int) -> int:
        start = index * 40_000
        return store.read_into("object", start, memoryview(buffer)[start : start + 40_000])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(64))) == [40_000] * 64
    assert buffer == data


def test_a_listing_tells_sizes_and_times_by_the_clock_of_the_store(store: Store) -> None:
    before = store.now()
    store.write("events/b", b"22")
    store.put("events/a", memoryview(b"1"), 1024)
    store.write("other", b"x")
    found = store.listing("events/")
    assert [(name, info.bytes) for name, info in found.items()] == [("events/a", 1), ("events/b", 2)]
    # S3 tells whole seconds, cut off.
    assert all(before - 1 <= info.modified <= store.now() + 1 for info in found.values())
    assert store.listing("nowhere/") == {}


def test_the_clock_of_the_store_goes_on_and_leaves_no_object(store: Store) -> None:
    first = store.now()
    assert abs(first - time.time()) < 5
    deadline = time.monotonic() + 10
    while store.now() <= first:
        assert time.monotonic() < deadline
    assert store.sizes("") == {}


def test_a_store_that_keeps_its_promises_proves_it_and_is_as_empty_as_before(store: Store) -> None:
    store.prove()
    assert store.sizes("") == {}


def test_what_is_dropped_from_the_cache_is_still_there(store: Store) -> None:
    store.put("shards/a.bin", memoryview(some_bytes(MIB)), 1024 * 1024)
    store.drop_cache("shards/a.bin")
    assert store.read("shards/a.bin") == some_bytes(MIB)


def test_without_uploads_there_are_none_to_abort(store: Store) -> None:
    store.put("shards/a.bin", memoryview(some_bytes(6 * MIB)), 5 * MIB)
    assert store.abort_multipart_uploads("", store.now() + 10) == 0
    assert store.sizes("") == {"shards/a.bin": 6 * MIB}
