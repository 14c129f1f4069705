"""A chunk is read whole and checked, or not given at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.commits import CommitGoneError, chunk_span, read_chunk, read_part
from convoy.checkpoint.format import Commit, DamagedCommitError, DataFile
from convoy.storage import Store, StoreUnavailable
from tests.campaign import examples
from tests.checkpoint.shims import Faulty
from tests.checkpoint.torchless import TinyState, form, part_bytes

pytestmark = pytest.mark.campaign

CHUNK = 4096
STATE = TinyState(sizes=(3 * CHUNK + 17,), chunk_bytes=CHUNK)


def saved(store: Store) -> tuple[Commit, DataFile]:
    commit = STATE.save(store, 5, generation=form(store))
    return commit, read_part(store, commit, 0).files[0]


def read(store: Store, commit: Commit, file: DataFile, index: int) -> bytes:
    buffer = bytearray(chunk_span(file, index, CHUNK)[1])
    read_chunk(store, commit, file, index, memoryview(buffer), CHUNK)
    return bytes(buffer)


@examples(200)
@given(st.integers(1, 5_000), st.integers(100, 3_000))
def test_chunks_cover_a_file_without_gap_or_overlap(length: int, chunk_bytes: int) -> None:
    file = DataFile(name="f", bytes=length, crc32c=[])
    count = -(-length // chunk_bytes)
    spans = [chunk_span(file, index, chunk_bytes) for index in range(count)]
    assert [start for start, _ in spans] == [sum(n for _, n in spans[:i]) for i in range(count)]
    assert sum(n for _, n in spans) == length
    for outside in (-1, count):
        with pytest.raises(IndexError):
            chunk_span(file, outside, chunk_bytes)


def test_every_chunk_is_what_was_written(store: Store) -> None:
    commit, file = saved(store)
    data = STATE.data(0, 5)
    assert part_bytes(store, commit, 0) == data
    assert [read(store, commit, file, i) for i in range(4)] == [data[i * CHUNK : (i + 1) * CHUNK] for i in range(4)]


def test_a_buffer_of_another_length_is_refused(local: Store) -> None:
    commit, file = saved(local)
    with pytest.raises(ValueError, match="4095 bytes for chunk 0"):
        read_chunk(local, commit, file, 0, memoryview(bytearray(CHUNK - 1)), CHUNK)


def test_only_the_chunk_with_the_flipped_bit_is_damaged(store: Store) -> None:
    commit, file = saved(store)
    data = bytearray(STATE.data(0, 5))
    data[CHUNK + 100] ^= 0x40
    store.write(commit.prefix + file.name, bytes(data))
    assert read(store, commit, file, 0) == data[:CHUNK]
    with pytest.raises(DamagedCommitError, match=r"00000\.000\.bin: the checksum of chunk 1 does not match"):
        read(store, commit, file, 1)
    assert read(store, commit, file, 3) == data[3 * CHUNK :]


def test_swapped_chunks_are_damaged_both(local: Store) -> None:
    commit, file = saved(local)
    data = STATE.data(0, 5)
    local.write(commit.prefix + file.name, data[CHUNK : 2 * CHUNK] + data[:CHUNK] + data[2 * CHUNK :])
    for index in (0, 1):
        with pytest.raises(DamagedCommitError):
            read(local, commit, file, index)


@pytest.mark.parametrize("length", [0, CHUNK - 1, CHUNK, 3 * CHUNK, 3 * CHUNK + 16])
def test_a_cut_file_is_damaged_from_the_cut_on(store: Store, length: int) -> None:
    commit, file = saved(store)
    store.write(commit.prefix + file.name, STATE.data(0, 5)[:length])
    for index in range(4):
        if (index + 1) * CHUNK <= length:
            assert read(store, commit, file, index)
        else:
            with pytest.raises(DamagedCommitError, match=f"ends at byte {max(length, index * CHUNK)} of"):
                read(store, commit, file, index)


def test_a_missing_file_is_damage_and_gone_once_its_commit_is_pruned(store: Store) -> None:
    commit, file = saved(store)
    store.delete(commit.prefix + file.name)
    with pytest.raises(DamagedCommitError, match="there is no such object"):
        read(store, commit, file, 0)
    store.delete(commit.ref.name)
    with pytest.raises(CommitGoneError):
        read(store, commit, file, 0)


def test_a_bit_that_flips_on_the_way_once_is_read_again_and_not_from_the_cache(local: Store) -> None:
    commit, file = saved(local)
    faulty, name = Faulty(local), commit.prefix + file.name
    faulty.garble(name, times=1)
    assert read(faulty, commit, file, 2) == STATE.data(0, 5)[2 * CHUNK : 3 * CHUNK]
    assert faulty.calls == [("read_into", name), ("drop_cache", name), ("read_into", name)]


def test_damage_needs_a_store_that_is_there(local: Store) -> None:
    commit, file = saved(local)
    faulty = Faulty(local)
    faulty.garble(commit.prefix + file.name, times=2)
    faulty.fail(commit.ref.name)
    with pytest.raises(StoreUnavailable):
        read(faulty, commit, file, 0)


def test_a_record_with_too_few_checksums_is_damage(local: Store) -> None:
    commit, file = saved(local)
    with pytest.raises(DamagedCommitError):
        read(local, commit, file.model_copy(update={"crc32c": file.crc32c[:3]}), 3)
