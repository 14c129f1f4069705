"""Commits and part records: made once, read with a second look, and an outage is never taken for damage."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from convoy.checkpoint.commits import CommitGoneError, check_mounted, create_commit, file_digest, read_commit, read_part
from convoy.checkpoint.format import Commit, DamagedCommitError, DataFile, part_record_name
from convoy.job.lineage import CommitRef
from convoy.storage import Store, StoreUnavailable, open_store
from tests.checkpoint.shims import Faulty
from tests.checkpoint.torchless import TinyState, form
from tests.conftest import S3Server

STATE = TinyState()


def draft(generation: int, step: int, attempt: str) -> Commit:
    return STATE.draft(generation, step).model_copy(update={"attempt": attempt})


def test_a_commit_is_read_as_it_was_created(store: Store) -> None:
    created = create_commit(store, draft(1, 5, "a"))
    assert read_commit(store, created.ref) == created
    assert created.checksum


def test_a_commit_that_is_there_already_by_our_own_attempt_is_ours(store: Store) -> None:
    first = create_commit(store, draft(1, 5, "a"))
    assert create_commit(store, draft(1, 5, "a")) == first


def test_another_save_s_commit_of_the_same_generation_and_step_stands(store: Store) -> None:
    first = create_commit(store, draft(1, 5, "a"))
    assert create_commit(store, draft(1, 5, "b")) == first
    assert read_commit(store, first.ref).attempt == "a"


def test_of_eight_that_commit_at_once_all_get_the_same_one(store_uri: str) -> None:
    stores = [open_store(store_uri) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: create_commit(stores[i], draft(1, 5, f"attempt {i}")), range(8)))
    assert len({commit.attempt for commit in got}) == 1


def test_a_name_that_holds_something_else_is_no_success(store: Store) -> None:
    store.write(draft(1, 5, "a").ref.name, b"something else")
    with pytest.raises(DamagedCommitError, match="14 bytes that are not a commit"):
        create_commit(store, draft(1, 5, "a"))


def test_a_commit_under_another_s_name_is_damage(store: Store) -> None:
    create_commit(store, draft(1, 5, "a"))
    store.write(CommitRef(generation=1, step=6).name, store.read(CommitRef(generation=1, step=5).name))
    with pytest.raises(DamagedCommitError, match="holds the commit commits/000001-000000005"):
        read_commit(store, CommitRef(generation=1, step=6))


def test_a_commit_that_is_not_there_is_gone_but_only_where_its_job_is(store: Store) -> None:
    ref = CommitRef(generation=1, step=5)
    with pytest.raises(StoreUnavailable, match="is it mounted"):
        read_commit(store, ref)
    form(store)
    with pytest.raises(CommitGoneError, match="there is no such commit"):
        read_commit(store, ref)


def test_a_commit_that_reads_well_the_second_time_which_is_not_from_the_cache_is_no_damage(local: Store) -> None:
    made = create_commit(local, draft(1, 5, "a"))
    faulty = Faulty(local)
    faulty.garble(made.ref.name, times=1)
    assert read_commit(faulty, made.ref) == made
    assert faulty.calls == [("read", made.ref.name), ("drop_cache", made.ref.name), ("read", made.ref.name)]
    faulty.garble(made.ref.name, times=2)
    with pytest.raises(DamagedCommitError):
        read_commit(faulty, made.ref)


def test_a_part_is_read_as_its_writer_put_it(store: Store) -> None:
    commit = STATE.save(store, 5, generation=form(store))
    for writer in range(2):
        record = read_part(store, commit, writer)
        assert (record.writer, record.writers) == (writer, 2)
        assert record.shards == STATE.layout(writer).shards
        assert file_digest(record.files[0]) == commit.files[record.files[0].name]
    assert read_part(store, commit, 0).values[0].value == 5
    assert read_part(store, commit, 1).values == []


def test_a_changed_part_is_damage(store: Store) -> None:
    commit = STATE.save(store, 5, generation=form(store))
    name = commit.prefix + part_record_name(1)
    store.write(name, store.read(name) + b" ")
    with pytest.raises(DamagedCommitError, match=r"part-00001\.json: not what the commit says"):
        read_part(store, commit, 1)


def test_the_part_of_another_writer_is_damage(store: Store) -> None:
    commit = STATE.save(store, 5, generation=form(store))
    store.write(commit.prefix + part_record_name(1), store.read(commit.prefix + part_record_name(0)))
    with pytest.raises(DamagedCommitError):
        read_part(store, commit, 1)


def test_a_part_that_the_commit_does_not_name_is_damage(store: Store) -> None:
    commit = STATE.save(store, 5, generation=form(store))
    store.create(commit.prefix + part_record_name(2), b"{}")
    with pytest.raises(DamagedCommitError):
        read_part(store, commit, 2)


def test_a_missing_part_is_damage_while_its_commit_stands_and_gone_once_that_is_pruned(store: Store) -> None:
    commit = STATE.save(store, 5, generation=form(store))
    store.delete(commit.prefix + part_record_name(1))
    with pytest.raises(DamagedCommitError, match="there is no such object") as damage:
        read_part(store, commit, 1)
    assert not isinstance(damage.value, CommitGoneError)
    store.delete(commit.ref.name)
    with pytest.raises(CommitGoneError):
        read_part(store, commit, 1)


def test_nothing_is_damage_where_the_folder_of_the_job_is_empty(tmp_path: Path) -> None:
    mounted = open_store(str(tmp_path / "mounted"))
    commit = STATE.save(mounted, 5, generation=form(mounted))
    (tmp_path / "empty").mkdir()
    unmounted = open_store(str(tmp_path / "empty"))
    with pytest.raises(StoreUnavailable, match="is it mounted"):
        read_part(unmounted, commit, 0)
    with pytest.raises(StoreUnavailable, match="is it mounted"):
        check_mounted(unmounted, commit.generation)
    check_mounted(mounted, commit.generation)


def test_a_store_that_goes_away_between_the_reads_is_an_outage(local: Store) -> None:
    commit = STATE.save(local, 5, generation=form(local))
    faulty = Faulty(local)
    faulty.garble(commit.prefix + part_record_name(0), times=2)
    faulty.fail(commit.ref.name)
    with pytest.raises(StoreUnavailable, match="out of reach"):
        read_part(faulty, commit, 0)


def test_a_stopped_server_is_an_outage(s3_uri: str, s3_server: S3Server) -> None:
    store = open_store(s3_uri)
    commit = STATE.save(store, 5, generation=form(store))
    s3_server.stop()
    with pytest.raises(StoreUnavailable):
        read_commit(store, commit.ref)
    with pytest.raises(StoreUnavailable):
        read_part(store, commit, 0)
    s3_server.start_again()
    assert read_commit(store, commit.ref) == commit


def test_a_file_s_digest_tells_its_chunks_apart_in_order() -> None:
    digests = [file_digest(DataFile(name="f", bytes=2, crc32c=checks)) for checks in ([1, 2], [2, 1], [1], [])]
    assert len({digest.crc32c for digest in digests}) == 4
