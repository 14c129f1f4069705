"""What every store promises of large objects, listings and clocks, asked of a folder and of S3 alike."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from convoy.storage import ObjectMissing, Store, StoreUnavailable, open_store
from convoy.storage.checksum import crc32c

MIB = 2**20


@pytest.fixture
def store(store_uri: str) -> Store:
    return open_store(store_uri)


def some_bytes(count: int) -> bytes:
    """No two windows of it are alike, so that no two chunks can change places unseen."""
    return b"".join(number.to_bytes(8, "little") for number in range(-(-count // 8)))[:count]


def filled(store: Store, name: str, start: int, count: int) -> bytes:
    buffer = bytearray(count)
    return bytes(buffer[: store.read_into(name, start, memoryview(buffer))])


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


@pytest.mark.parametrize(
    ("start", "count", "there"),
    [(0, 10, b"0123456789"), (3, 4, b"3456"), (6, 99, b"6789"), (9, 1, b"9"), (10, 5, b""), (99, 5, b""), (0, 0, b"")],
)
def test_reading_into_a_buffer_gives_what_there_is_of_the_range(
    store: Store, start: int, count: int, there: bytes
) -> None:
    store.write("digits", b"0123456789")
    assert filled(store, "digits", start, count) == there


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


@pytest.mark.parametrize("name", ["nothing", "no/folder/either", "folder", "file/below"])
def test_reading_a_missing_object_into_a_buffer_says_that_it_is_missing(store: Store, name: str) -> None:
    store.write("folder/object", b"x")
    store.write("file", b"x")
    with pytest.raises(ObjectMissing) as caught:
        filled(store, name, 0, 10)
    assert str(caught.value) == f"no object {name}"


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
    assert store.abort_uploads("", store.now() + 10) == 0
    assert store.sizes("") == {"shards/a.bin": 6 * MIB}
