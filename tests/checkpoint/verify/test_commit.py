"""Reading commits back, in a folder and on S3."""

import contextlib
from pathlib import Path

import pytest

from convoy.checkpoint.commits import CommitGoneError
from convoy.checkpoint.format import Commit, DamagedCommitError, file_name, part_record_name
from convoy.checkpoint.verify.commit import (
    StoppedError,
    SuspectedError,
    reread_from_storage,
    verify_commit,
    verify_part,
)
from convoy.checkpoint.verify.marks import damaged_in, read_damage, suspect, suspicions, verified_in, verified_parts
from convoy.job.leases import leased_commits
from convoy.storage import Store, StoreUnavailable, open_store
from tests.checkpoint.shims import Faulty
from tests.checkpoint.torchless import TinyState, form

STATE = TinyState(sizes=(5000, 3000), chunk_bytes=1024)


@pytest.fixture
def store(store_uri: str) -> Store:
    made = open_store(store_uri)
    form(made)
    return made


@pytest.fixture
def local(tmp_path: Path) -> Store:
    made = open_store(str(tmp_path))
    form(made)
    return made


def spoil(store: Store, name: str) -> None:
    data = bytearray(store.read(name))
    data[len(data) // 2] ^= 1
    store.write(name, bytes(data))


def data_name(commit: Commit, writer: int) -> str:
    return commit.prefix + file_name(writer, 0)


def test_a_commit_is_verified_once_each_of_its_parts_was_read_back(store: Store) -> None:
    commit = STATE.save(store, 10)
    assert verify_part(store, commit.ref, 1, True) == 3000
    assert (verified_in(store), verified_parts(store, commit.ref)) == (frozenset(), {1})
    assert verify_part(store, commit.ref, 0) == 5000
    assert (verified_in(store), damaged_in(store)) == ({commit.ref}, frozenset())


def test_a_whole_commit_is_read_back_under_a_lease(store: Store) -> None:
    commit = STATE.save(store, 10)
    held = []

    def stop() -> bool:
        held.append(leased_commits(store))
        return False

    assert verify_commit(store, commit.ref, stop=stop) == 8000
    assert verified_in(store) == {commit.ref}
    assert held == [{commit.ref}] * 8  # asked before each chunk
    assert leased_commits(store) == frozenset()


def test_a_flipped_bit_in_any_part_is_damage_that_is_marked_and_told(store: Store) -> None:
    commit = STATE.save(store, 10)
    spoil(store, data_name(commit, 1))
    verify_part(store, commit.ref, 0)
    with pytest.raises(DamagedCommitError, match="the checksum of chunk 1 does not match"):
        verify_part(store, commit.ref, 1)
    evidence = read_damage(store, commit.ref)
    assert evidence is not None
    assert evidence.error.endswith("00001.000.bin: the checksum of chunk 1 does not match its content")
    assert (verified_in(store), damaged_in(store)) == (frozenset(), {commit.ref})


@pytest.mark.parametrize("which", ["commit", "part record", "data"])
def test_whatever_is_spoiled_is_found(local: Store, which: str) -> None:
    commit = STATE.save(local, 10)
    record = commit.prefix + part_record_name(0)
    names = {"commit": commit.ref.name, "part record": record, "data": data_name(commit, 0)}
    spoil(local, names[which])
    with pytest.raises(DamagedCommitError):
        verify_commit(local, commit.ref)
    assert damaged_in(local) == {commit.ref}


@pytest.mark.parametrize("drop_cache", [False, True])
def test_a_missing_file_is_damage(store: Store, drop_cache: bool) -> None:
    commit = STATE.save(store, 10)
    store.delete(data_name(commit, 0))
    with pytest.raises(DamagedCommitError):
        verify_part(store, commit.ref, 0, drop_cache)
    assert damaged_in(store) == {commit.ref}


def test_what_one_of_several_hosts_finds_is_suspected_and_marked_when_another_finds_it_too(store: Store) -> None:
    commit = STATE.save(store, 10)
    spoil(store, data_name(commit, 1))
    with pytest.raises(SuspectedError, match="the checksum of chunk 1 does not match its content; only a finds it so"):
        verify_part(store, commit.ref, 1, host="a")
    assert (damaged_in(store), [(s.part, s.host) for s in suspicions(store)]) == (frozenset(), [(1, "a")])
    with pytest.raises(DamagedCommitError) as caught:
        verify_part(store, commit.ref, 1, host="b")
    assert not isinstance(caught.value, SuspectedError)
    assert (damaged_in(store), suspicions(store)) == ({commit.ref}, [])


def test_a_commit_that_is_read_back_whole_is_not_suspected_any_more(local: Store) -> None:
    commit = STATE.save(local, 10)
    suspect(local, commit.ref, 1, "a flipped bit", "a")
    verify_part(local, commit.ref, 0)
    verify_part(local, commit.ref, 1)
    assert verified_in(local) == frozenset()
    verify_commit(local, commit.ref)
    assert (verified_in(local), suspicions(local)) == ({commit.ref}, [])


@pytest.mark.parametrize("part", [None, 0, 1, 7])
@pytest.mark.parametrize("what", ["commit", "record", "data", "nothing"])
def test_another_host_reads_again_what_was_found_and_marks_nothing(local: Store, what: str, part: int | None) -> None:
    commit = STATE.save(local, 10)
    names = {"commit": commit.ref.name, "record": commit.prefix + part_record_name(0), "data": data_name(commit, 0)}
    if what in names:
        spoil(local, names[what])
    finds = what in ("commit", "record") or (what == "data" and part != 1)  # of 7 it cannot tell whose it is
    with pytest.raises(DamagedCommitError) if finds else contextlib.nullcontext():
        reread_from_storage(local, commit.ref, part, files=True, threads=2)
    with pytest.raises(DamagedCommitError) if what in ("commit", "record") else contextlib.nullcontext():
        reread_from_storage(local, commit.ref, part, files=False, threads=2)
    assert damaged_in(local) == frozenset()


def test_reading_again_goes_past_the_cache_of_all_it_reads(local: Store) -> None:
    commit, faulty = STATE.save(local, 10), Faulty(local)
    reread_from_storage(faulty, commit.ref, 1, files=True, threads=1)  # type: ignore[arg-type]
    read = dict.fromkeys(name for call, name in faulty.calls if call.startswith("read"))
    assert data_name(commit, 1) in read
    assert data_name(commit, 0) not in read
    for name in read:
        assert next(call for call, other in faulty.calls if other == name) == "drop_cache"


def test_a_commit_that_was_pruned_meanwhile_is_not_marked(local: Store) -> None:
    commit = STATE.save(local, 10)

    def prune_first() -> bool:
        local.delete(commit.ref.name)
        local.delete(data_name(commit, 0))
        return False

    with pytest.raises(CommitGoneError):
        verify_part(local, commit.ref, 0, stop=prune_first)
    assert damaged_in(local) == frozenset()


def test_an_outage_marks_nothing(local: Store) -> None:
    commit, faulty = STATE.save(local, 10), Faulty(local)
    faulty.fail(data_name(commit, 0))
    with pytest.raises(StoreUnavailable):
        verify_part(faulty, commit.ref, 0)  # type: ignore[arg-type]
    assert (damaged_in(local), verified_parts(local, commit.ref)) == (frozenset(), frozenset())


def test_the_cache_is_dropped_before_a_part_is_read_where_its_writer_is_on_this_host(local: Store) -> None:
    commit, faulty = STATE.save(local, 10), Faulty(local)
    verify_part(faulty, commit.ref, 0, drop_cache=True)  # type: ignore[arg-type]
    about = [call for call, name in faulty.calls if name == data_name(commit, 0)]
    assert (about[0], about.count("drop_cache"), set(about[1:])) == ("drop_cache", 1, {"read_into"})


def test_who_is_stopped_verifies_nothing(local: Store) -> None:
    commit = STATE.save(local, 10)
    with pytest.raises(StoppedError):
        verify_part(local, commit.ref, 0, stop=lambda: True)
    assert (damaged_in(local), verified_parts(local, commit.ref)) == (frozenset(), frozenset())
