"""Copying commits from one tier to the next: folder to S3 and back."""

import threading
from pathlib import Path

import pytest

from convoy.checkpoint.commits import read_commit
from convoy.checkpoint.format import DamagedCommitError, Digest, encode_commit, file_name, part_record_name
from convoy.checkpoint.verify.commit import StoppedError, verify_commit
from convoy.checkpoint.verify.marks import damaged_in
from convoy.checkpoint.writer.copy import (
    CopyAbortedError,
    CopyFailedError,
    check_copy_failures,
    commit_copied_parts,
    copy_commit,
    copy_job_records,
    copy_part,
    write_copy_failure,
)
from convoy.checkpoint.writer.prune import prune
from convoy.config.checkpoint import RetentionConfig
from convoy.config.errors import ConfigError
from convoy.job.leases import leased_commits
from convoy.job.lineage import parse_commits, read_history
from convoy.job.record import RECORD
from convoy.storage import Store, StoreUnavailable, open_store
from tests.checkpoint.torchless import TinyState, form, restored

STATE = TinyState(sizes=(5000, 0, 3000), chunk_bytes=1024)


@pytest.fixture(params=["folder to S3", "S3 to folder"])
def tiers(request: pytest.FixtureRequest, tmp_path: Path, s3_uri: str) -> tuple[Store, Store]:
    """Where the job lives, and where it is copied to."""
    stores = open_store(str(tmp_path / "job")), open_store(s3_uri)
    source, target = stores if request.param == "folder to S3" else stores[::-1]
    form(source)
    copy_job_records(source, target)
    return source, target


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Store, Store]:
    source, target = open_store(str(tmp_path / "job")), open_store(str(tmp_path / "tier"))
    form(source)
    copy_job_records(source, target)
    return source, target


def test_a_copied_commit_holds_the_same_state_and_the_tier_tells_the_job_by_itself(tiers: tuple[Store, Store]) -> None:
    source, target = tiers
    source.create(RECORD, b"the job")
    commit = STATE.save(source, 10)
    made, copied = copy_commit(source, target, commit.ref)
    assert copied == commit.bytes == 8000
    assert restored(target, commit.ref) == restored(source, commit.ref) == [STATE.data(w, 10) for w in range(3)]
    assert (made.tensors, made.attempt, made.bytes) == (commit.tensors, commit.attempt, commit.bytes)
    assert verify_commit(target, commit.ref) == 8000
    assert target.read(RECORD) == b"the job"
    assert read_history(target) == read_history(source)


def test_nothing_is_copied_to_a_tier_that_is_not_mounted(folders: tuple[Store, Store], tmp_path: Path) -> None:
    source, bare = folders[0], open_store(str(tmp_path / "bare"))
    commit = STATE.save(source, 10)
    with pytest.raises(StoreUnavailable, match=r"bare has nothing of the job: is it mounted\?"):
        copy_part(source, bare, commit.ref, 0)
    with pytest.raises(StoreUnavailable, match=r"bare has nothing of the job: is it mounted\?"):
        commit_copied_parts(source, bare, commit.ref, 0.0)
    assert not bare.sizes("")


def test_copying_again_does_nothing(folders: tuple[Store, Store]) -> None:
    source, target = folders
    commit = STATE.save(source, 10)
    first, _ = copy_commit(source, target, commit.ref)
    before = target.listing("")
    assert copy_commit(source, target, commit.ref) == (first, 0)
    assert target.listing("") == before


def test_a_copy_of_a_copy_is_the_same_state(folders: tuple[Store, Store], tmp_path: Path) -> None:
    source, target = folders
    commit = STATE.save(source, 10)
    copy_commit(source, target, commit.ref)
    third = open_store(str(tmp_path / "third"))
    copy_commit(target, third, commit.ref)
    assert restored(third, commit.ref) == restored(source, commit.ref)


def test_parts_that_two_copy_at_once_are_one_whole_copy(tiers: tuple[Store, Store]) -> None:
    source, target = tiers
    commit = STATE.save(source, 10)
    start, copied = threading.Barrier(4), list[int]()

    def copy() -> None:
        start.wait()
        copied.append(copy_part(source, target, commit.ref, 0, threads=1))

    threads = [threading.Thread(target=copy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(copied) == [0, 0, 0, 5000]
    assert len([name for name in target.sizes(commit.prefix) if "/00000." in name]) == 1  # the losers' are gone
    copy_commit(source, target, commit.ref)
    assert restored(target, commit.ref) == restored(source, commit.ref)


def test_a_copy_that_was_cut_short_leaves_nothing_and_can_be_done_again(tiers: tuple[Store, Store]) -> None:
    source, target = tiers
    commit = STATE.save(source, 10)
    asked = iter([False, False, True])
    with pytest.raises(StoppedError):
        copy_part(source, target, commit.ref, 0, stop=lambda: next(asked), threads=1)
    assert target.sizes("shards/") == {}
    assert copy_part(source, target, commit.ref, 0) == 5000


def test_source_and_target_are_held_while_a_part_is_copied(folders: tuple[Store, Store]) -> None:
    source, target = folders
    commit, held = STATE.save(source, 10), set[bool]()

    def stop() -> bool:
        held.add(leased_commits(source) == leased_commits(target) == {commit.ref})
        return False

    copy_part(source, target, commit.ref, 0, stop=stop)
    assert held == {True}


def test_a_damaged_commit_is_never_copied(folders: tuple[Store, Store]) -> None:
    source, target = folders
    commit = STATE.save(source, 10)
    data = Path(source.uri) / commit.prefix / file_name(2, 0)
    data.write_bytes(b"x" + data.read_bytes()[1:])
    with pytest.raises(DamagedCommitError, match="the checksum of chunk 0 does not match"):
        copy_commit(source, target, commit.ref)
    assert target.sizes("commits/") == {}
    assert damaged_in(source) == frozenset()  # reading back marks, copying tells


def test_a_copy_is_committed_only_when_every_part_has_come(folders: tuple[Store, Store]) -> None:
    source, target = folders
    commit = STATE.save(source, 10)
    copy_part(source, target, commit.ref, 0)
    copy_part(source, target, commit.ref, 1)
    clock = iter(range(100))
    with pytest.raises(CopyFailedError, match=r"part-00002.json did not come within 3 s"):
        commit_copied_parts(source, target, commit.ref, 3.0, sleep=lambda _: None, clock=lambda: float(next(clock)))
    assert target.sizes("commits/") == {}
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        copy_part(source, target, commit.ref, 2)

    assert commit_copied_parts(source, target, commit.ref, 60.0, sleep=sleep) == read_commit(target, commit.ref)
    assert len(slept) == 1


def test_the_larger_a_part_the_longer_its_copy_is_waited_for(folders: tuple[Store, Store]) -> None:
    source, target = folders
    commit = STATE.save(source, 10)
    copy_part(source, target, commit.ref, 0)
    large = {"00000.000.bin": 10**9, "00000.001.bin": 4 * 10**9, "00002.000.copy-9.bin": 2 * 10**9}
    files = {name: Digest(bytes=size, crc32c=0) for name, size in large.items()}
    source.write(commit.ref.name, encode_commit(commit.model_copy(update={"files": files})))
    clock = iter(range(0, 10_000, 100))
    with pytest.raises(CopyFailedError, match=r"part-00001.json did not come within 1400 s"):
        commit_copied_parts(source, target, commit.ref, sleep=lambda _: None, clock=lambda: float(next(clock)))


def test_who_waits_for_parts_stops_when_a_writer_says_that_its_part_will_not_come(folders: tuple[Store, Store]) -> None:
    source, target = folders
    commit = STATE.save(source, 10)
    copy_part(source, target, commit.ref, 0)
    slept = list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        copy_part(source, target, commit.ref, 1)
        write_copy_failure(target, commit.ref, 2, "no space")

    with pytest.raises(CopyAbortedError, match="writer 2: no space"):
        commit_copied_parts(source, target, commit.ref, 1e9, sleep=sleep)
    assert len(slept) == 1
    with pytest.raises(CopyAbortedError, match="writer 2: no space"):
        check_copy_failures(target, commit.ref)
    assert parse_commits(target.sizes("commits/")) == []


def test_a_copy_whose_parts_are_all_there_is_committed_whatever_was_said_before(folders: tuple[Store, Store]) -> None:
    source, target = folders
    commit = STATE.save(source, 10)
    write_copy_failure(target, commit.ref, 2, "no space")
    copy_commit(source, target, commit.ref)
    assert restored(target, commit.ref) == restored(source, commit.ref)


def test_no_word_is_left_on_a_tier_that_is_not_mounted(folders: tuple[Store, Store], tmp_path: Path) -> None:
    bare = open_store(str(tmp_path / "bare"))
    with pytest.raises(StoreUnavailable, match="is it mounted"):
        write_copy_failure(bare, STATE.save(folders[0], 10).ref, 1, "no space")
    assert not bare.sizes("")


def test_the_word_of_a_copy_that_failed_goes_when_a_later_one_has_come(folders: tuple[Store, Store]) -> None:
    source, target = folders
    first, second = (STATE.save(source, step, attempt=str(step)) for step in (10, 20))
    copy_part(source, target, first.ref, 0)
    write_copy_failure(target, first.ref, 1, "no space")
    write_copy_failure(target, second.ref, 1, "no space")
    copy_commit(source, target, second.ref)

    pruned = prune(target, 1, RetentionConfig(keep_last=1), root=source)

    assert (pruned.commits, pruned.attempts, pruned.error) == ([], 3, None)
    assert {name.split("/")[2] for name in target.sizes("shards/")} == {"20"}
    assert restored(target, second.ref) == restored(source, second.ref)


def test_parts_of_another_save_or_without_their_files_are_never_committed(folders: tuple[Store, Store]) -> None:
    source, target = folders
    commit = STATE.save(source, 10)
    for writer in range(3):
        copy_part(source, target, commit.ref, writer)
    (data,) = (name for name in target.sizes(commit.prefix) if "/00002." in name)
    target.delete(data)
    with pytest.raises(CopyFailedError, match="is missing or has another size"):
        commit_copied_parts(source, target, commit.ref, 0.0)
    target.write(commit.prefix + part_record_name(2), source.read(commit.prefix + part_record_name(0)))
    with pytest.raises(CopyFailedError, match=r"part-00002.json: belongs to another save"):
        commit_copied_parts(source, target, commit.ref, 0.0)


def test_another_save_s_commit_of_the_same_step_on_the_target_stands(folders: tuple[Store, Store]) -> None:
    source, target = folders
    copy_job_records(source, target)
    theirs = STATE.save(target, 10, attempt="b")
    ours = STATE.save(source, 10, attempt="a")
    assert copy_commit(source, target, ours.ref)[0] == theirs == read_commit(target, ours.ref)


def test_a_target_that_holds_another_job_is_refused(folders: tuple[Store, Store]) -> None:
    source, target = folders
    source.create(RECORD, b"blue")
    target.create(RECORD, b"red")
    with pytest.raises(ConfigError, match=r"tier/JOB.json: differs from .*job/JOB.json; it holds another job"):
        copy_job_records(source, target)


def test_a_copy_that_has_gone_on_by_itself_is_another_history_and_is_not_mixed_with_this_one(
    folders: tuple[Store, Store],
) -> None:
    source, target = folders
    copy_commit(source, target, STATE.save(source, 10).ref)
    for store in (source, target):
        form(store)
    theirs, ours = STATE.save(target, 20, generation=2), STATE.save(source, 30, generation=2, attempt="b")
    form(source)
    source.create(RECORD, b"the job")
    before = target.listing("")
    with pytest.raises(ConfigError, match=r"tier/generations/000002.json: differs from .*job/generations/000002"):
        copy_commit(source, target, ours.ref)
    assert (target.listing(""), restored(target, theirs.ref)) == (before, [STATE.data(w, 20) for w in range(3)])


def test_a_copy_that_has_gone_on_while_this_one_has_not_takes_what_it_lacks(folders: tuple[Store, Store]) -> None:
    source, target = folders
    form(target)
    commit = STATE.save(source, 10)
    copy_commit(source, target, commit.ref)
    assert restored(target, commit.ref) == restored(source, commit.ref)
