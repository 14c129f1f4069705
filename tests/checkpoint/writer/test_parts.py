"""A part is its files and then its record; without the record there is no part."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.format import FORMAT_VERSION, PartRecord, failure_note_name, part_record_name, shards_prefix
from convoy.checkpoint.messages import SetLayout
from convoy.checkpoint.writer.parts import (
    PACED_SECONDS,
    AbandonedError,
    Pace,
    part_pace,
    write_failure_note,
    write_part,
)
from convoy.storage import Store, StoreUnavailable
from convoy.storage.checksum import crc32c
from tests.checkpoint.shims import Faulty
from tests.checkpoint.torchless import TinyState

STATE = TinyState()
PREFIX = shards_prefix(1, 5, "a")


def test_the_record_says_what_lies_where_with_a_checksum_per_chunk(store: Store) -> None:
    data = STATE.data(1, 5)
    request = STATE.request(store.uri, 1, 5)

    record = write_part(store, request, STATE.layout(1), memoryview(data), 2, chunk_bytes=1024)

    assert PartRecord.model_validate_json(store.read(PREFIX + part_record_name(1))) == record
    assert (record.format, record.chunk_bytes, record.attempt) == (FORMAT_VERSION, 1024, "a")
    assert (record.generation, record.step, record.writer, record.writers) == (1, 5, 1, 2)
    assert record.shards == STATE.layout(1).shards
    (file,) = record.files
    assert (file.name, file.bytes) == ("00001.000.bin", len(data))
    assert file.crc32c == [crc32c(data[at : at + 1024]) for at in range(0, len(data), 1024)]
    assert store.read(PREFIX + file.name) == data


def test_files_lie_one_after_the_other_in_the_buffer_and_more_may_follow(store: Store) -> None:
    data = STATE.data(0, 5)
    layout = SetLayout(shards=[], file_bytes=[1000, 0, 2000])
    request = STATE.request(store.uri, 0, 5)

    record = write_part(store, request, layout, memoryview(data), 2)

    assert [file.name for file in record.files] == ["00000.000.bin", "00000.001.bin", "00000.002.bin"]
    assert [store.read(PREFIX + file.name) for file in record.files] == [data[:1000], b"", data[1000:3000]]


def test_a_part_without_tensors_is_its_record_alone(store: Store) -> None:
    record = write_part(store, STATE.request(store.uri, 0, 5), SetLayout(shards=[], file_bytes=[]), memoryview(b""), 2)
    assert record.values[0].value == 5
    assert list(store.sizes(PREFIX)) == [PREFIX + part_record_name(0)]


def test_a_buffer_that_is_too_short_is_refused_before_anything_is_put(local: Store) -> None:
    with pytest.raises(ValueError, match="2999 bytes for a part of 3000"):
        write_part(local, STATE.request(local.uri, 1, 5), STATE.layout(1), memoryview(bytes(2999)), 2)
    assert local.sizes("") == {}


def test_an_attempt_s_name_serves_once(local: Store) -> None:
    STATE.write(local, STATE.request(local.uri, 1, 5))
    before = local.read(PREFIX + part_record_name(1))
    with pytest.raises(StoreUnavailable):
        STATE.write(local, STATE.request(local.uri, 1, 5))
    with pytest.raises(FileExistsError, match="was written before"):
        write_part(local, STATE.request(local.uri, 1, 5), SetLayout(shards=[], file_bytes=[]), memoryview(b""), 2)
    assert local.read(PREFIX + part_record_name(1)) == before


@pytest.mark.parametrize(("asked_before", "files"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)])
def test_an_attempt_that_is_given_up_gets_no_record_and_no_half_file(
    local: Store, asked_before: int, files: int
) -> None:
    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked == asked_before:
            raise AbandonedError("too late")

    layout = SetLayout(shards=[], file_bytes=[1000, 1000])
    with pytest.raises(AbandonedError):
        write_part(local, STATE.request(local.uri, 1, 5), layout, memoryview(bytes(3000)), 2, check=check)
    assert len(local.sizes(PREFIX)) == files
    assert PREFIX + part_record_name(1) not in local.sizes(PREFIX)


def test_a_record_that_cannot_be_put_fails_the_part(local: Store) -> None:
    faulty = Faulty(local)
    faulty.fail(PREFIX + part_record_name(1))
    with pytest.raises(StoreUnavailable):
        STATE.write(faulty, STATE.request(local.uri, 1, 5))


def test_a_failed_writer_leaves_one_line_for_the_others(store: Store) -> None:
    write_failure_note(store, STATE.request(store.uri, 1, 5), "writer 1: no space")
    write_failure_note(store, STATE.request(store.uri, 1, 5), "writer 1: another reason")
    assert store.read(PREFIX + failure_note_name(1)) == b"writer 1: no space"


def test_its_files_are_put_at_one_pace(local: Store) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    pace = Pace(1000.0, lambda: clock[0], sleep)
    layout = SetLayout(shards=[], file_bytes=[1000, 2000])
    request = STATE.request(local.uri, 0, 5)
    write_part(local, request, layout, memoryview(STATE.data(0, 5)), 1, pace=pace, chunk_bytes=500)
    assert clock[0] == pytest.approx(2.5)  # the last piece is on its way


class Clock:
    """Stands still but for what is slept."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 5)), min_size=2))
def test_never_more_than_the_rate_from_any_piece_to_any_later_one(pieces: list[tuple[int, float]]) -> None:
    clock, begun = Clock(), list[tuple[float, int]]()
    pace = Pace(100.0, clock, clock.sleep)
    for count, pause in pieces:
        pace.wait_for(count)
        begun.append((clock.now, count))
        clock.now += pause
    for first in range(len(begun)):
        for last in range(first + 1, len(begun)):
            moved = sum(count for _, count in begun[first:last])
            assert begun[last][0] - begun[first][0] >= moved / 100.0 - 1e-6


def test_the_first_piece_waits_for_nothing_and_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    pace = Pace(10.0, clock, clock.sleep)
    pace.wait_for(10)
    assert clock.now == 0.0
    clock.now = 100.0
    pace.wait_for(10)
    pace.wait_for(10)
    assert clock.now == 101.0


def test_without_a_rate_nobody_waits() -> None:
    clock = Clock()
    pace = Pace(None, clock, clock.sleep)
    for _ in range(10):
        pace.wait_for(2**40)
    assert clock.now == 0.0


def test_threads_keep_to_it_together() -> None:
    pace, began = Pace(1000.0), time.monotonic()

    def move() -> None:
        for _ in range(5):
            pace.wait_for(10)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 0.189


def test_once_somebody_waits_there_is_no_pace_any_more() -> None:
    clock, asked = Clock(), list[float]()

    def hurried(seconds: float) -> bool:
        asked.append(seconds)
        clock.now += 0.5
        return True

    pace = Pace(10.0, clock, hurried)
    for _ in range(5):
        pace.wait_for(10)
    assert asked == [1.0]
    assert clock.now == 0.5


@given(st.floats(1e6, 1e9), st.integers(0, 10**12))
def test_no_part_is_held_back_for_longer_than_half_a_minute(wanted: float, part_bytes: int) -> None:
    pace = part_pace(wanted, part_bytes)
    assert pace is not None
    assert pace >= wanted
    assert part_bytes / pace <= PACED_SECONDS * 1.000001
    assert part_pace(None, part_bytes) is None
