"""Pruning a tier: in a folder and on S3."""

import itertools
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint.format import Commit
from convoy.checkpoint.verify.commit import verify_commit
from convoy.checkpoint.verify.marks import commits_with_marks, mark_damaged, verified_in
from convoy.checkpoint.writer.copy import CopyFailedError, commit_copied_parts, copy_commit, copy_job_records, copy_part
from convoy.checkpoint.writer.parts import write_failure_note
from convoy.checkpoint.writer.prune import prune, take_inventory
from convoy.config.checkpoint import RetentionConfig
from convoy.job.generations import rewind
from convoy.job.leases import lease
from convoy.job.lineage import CommitRef, generation_name, parse_commits, read_history
from convoy.storage import Store, StoreUnavailable, open_store
from tests.checkpoint.shims import Hooked
from tests.checkpoint.stage import Actor, MemoryStore
from tests.checkpoint.torchless import TinyState, form, restored

STATE = TinyState(sizes=(50, 30))
ONE = RetentionConfig(keep_last=1)
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "errors.md"


@pytest.fixture
def store(store_uri: str) -> Store:
    made = open_store(store_uri)
    form(made)
    return made


@pytest.fixture
def local(tmp_path: Path) -> Store:
    made = open_store(str(tmp_path / "job"))
    form(made)
    return made


def saved(store: Store, *steps: int, generation: int = 1) -> list[Commit]:
    """Commits of these steps, all read back."""
    commits = [STATE.save(store, step, generation=generation) for step in steps]
    for commit in commits:
        verify_commit(store, commit.ref)
    return commits


def steps(store: Store) -> list[int]:
    return sorted(ref.step for ref in parse_commits(store.sizes("commits/")))


def age(store: Store, prefix: str) -> None:
    """Make these objects of a folder two hours old."""
    then = time.time() - 7200
    for name in store.sizes(prefix):
        os.utime(Path(store.uri) / name, (then, then))


def test_old_commits_go_with_their_files_and_marks_and_the_newest_stay(store: Store) -> None:
    commits = saved(store, 10, 20, 30)
    pruned = prune(store, 1, RetentionConfig(keep_last=2))
    assert (pruned.commits, pruned.attempts, pruned.error) == ([commits[0].ref], 0, None)
    assert pruned.bytes > 80  # two part records, too
    assert steps(store) == [20, 30]
    assert store.sizes(f"shards/{commits[0].ref.stem}/") == {}
    assert commits_with_marks(store) == verified_in(store) == {commits[1].ref, commits[2].ref}
    for commit in commits[1:]:
        assert restored(store, commit.ref) == [STATE.data(writer, commit.step) for writer in range(2)]
    assert prune(store, 1, RetentionConfig(keep_last=2)).commits == []


def test_a_commit_that_was_not_read_back_keeps_the_ones_before_it(store: Store) -> None:
    saved(store, 10, 20)
    STATE.save(store, 30)
    assert [ref.step for ref in prune(store, 1, ONE).commits] == [10]
    assert steps(store) == [20, 30]


def test_an_older_generation_prunes_nothing(store: Store) -> None:
    saved(store, 10, 20, 30)
    form(store)
    pruned = prune(store, 1, ONE)
    assert (pruned.commits, steps(store)) == ([], [10, 20, 30])
    assert pruned.error == "generation 1 is superseded: another run of the job formed generation 2"


def test_on_a_further_tier_the_generations_of_the_root_decide(local: Store, tmp_path: Path) -> None:
    tier = open_store(str(tmp_path / "tier"))
    for commit in saved(local, 10, 20, 30):
        copy_commit(local, tier, commit.ref)
        verify_commit(tier, commit.ref)
    rewind(local, 10)  # of which the tier does not know
    assert prune(tier, 1, ONE, root=local).commits == []
    assert [ref.step for ref in prune(tier, 2, ONE, root=local).commits] == []
    age(tier, "commits/")
    assert [ref.step for ref in prune(tier, 2, ONE, root=local).commits] == [20, 30]
    assert steps(tier) == [10]


def test_a_root_that_does_not_know_the_callers_generation_is_not_mounted(local: Store) -> None:
    saved(local, 10, 20)
    local.delete(generation_name(1))
    pruned = prune(local, 1, ONE)
    assert pruned.error is not None
    assert pruned.error.endswith("lacks generation 1: is it mounted?")
    assert steps(local) == [10, 20]


def test_what_is_under_a_lease_stays_until_it_is_given_back(store: Store) -> None:
    commits = saved(store, 10, 20, 30)
    with lease(store, commits[0].ref):
        assert prune(store, 1, ONE).commits == [commits[1].ref]
        assert restored(store, commits[0].ref)
    assert prune(store, 1, ONE).commits == [commits[0].ref]


def test_a_reader_that_comes_while_its_commit_is_removed_finds_all_of_it_or_nothing() -> None:
    ref, found = CommitRef(generation=1, step=10), list[bool]()
    for moment in itertools.count():
        store = MemoryStore()
        form(store)
        saved(store, 10, 20)
        pruner = Actor(store, lambda actor, view: prune(view, 1, ONE))
        for _ in range(moment):
            pruner.step()
        if pruner.done:
            assert pruner.error is None
            break
        with lease(store, ref):
            found.append(ref.name in store.objects)
            while not pruner.done:
                pruner.step()
            assert pruner.error is None
            if found[-1]:
                assert restored(store, ref) == [STATE.data(writer, 10) for writer in range(2)]
    assert found.count(True) > 10
    assert found.count(False) > 3


def test_a_rewind_that_comes_while_its_target_is_removed_keeps_it_or_is_refused(local: Store) -> None:
    saved(local, 10, 20)
    removed = []

    def before(operation: str, name: str) -> None:
        if operation == "delete" and name.startswith("commits/") and not removed:
            removed.append(name)
            rewind(local, 10)  # between the decision and the removal

    pruned = prune(Hooked(local, before), 1, ONE)
    assert removed == ["commits/000001-000000010.json"]
    assert (pruned.commits, steps(local)) == ([], [10, 20])
    assert read_history(local).newest == 2
    assert restored(local, CommitRef(generation=1, step=10))


def test_files_that_no_commit_names_go_when_it_is_known_that_none_will(local: Store) -> None:
    STATE.write(local, STATE.request(local.uri, 1, 10, attempt="aborted"))
    STATE.write(local, STATE.request(local.uri, 1, 30, attempt="under-way"))
    assert prune(local, 1, ONE).attempts == 0
    saved(local, 20)
    pruned = prune(local, 1, ONE)
    assert (pruned.attempts, local.sizes("shards/000001-000000010/")) == (1, {})
    assert len(local.sizes("shards/000001-000000030/under-way/")) == 2


def test_files_of_an_attempt_that_is_over_go_without_another_commit_and_the_word_of_its_writers_stays(
    store: Store,
) -> None:
    for step, name in [(10, "over"), (20, "under-way")]:
        STATE.write(store, STATE.request(store.uri, 1, step, attempt=name))
    write_failure_note(store, STATE.request(store.uri, 0, 10, attempt="over"), "no space left")
    pruned = prune(store, 1, ONE, failed=frozenset({"over"}))
    assert (pruned.attempts, pruned.error) == (1, None)
    assert pruned.bytes > STATE.sizes[1]
    assert list(store.sizes("shards/000001-000000010/")) == ["shards/000001-000000010/over/failed-00000.txt"]
    assert len(store.sizes("shards/000001-000000020/")) == 2
    assert prune(store, 1, ONE, failed=frozenset({"over"})).attempts == 0
    saved(store, 30)
    assert prune(store, 1, ONE, failed=frozenset({"over"})).attempts == 2
    assert store.sizes("shards/000001-000000010/") == {}


def test_what_a_commit_names_is_never_taken_for_a_failed_attempt(local: Store) -> None:
    STATE.write(local, STATE.request(local.uri, 0, 10, attempt="first"))
    (commit,) = saved(local, 10)
    over = frozenset({"first", commit.attempt})
    assert prune(local, 1, ONE, failed=over).attempts == 1
    assert restored(local, commit.ref)
    with lease(local, CommitRef(generation=1, step=20)):
        STATE.write(local, STATE.request(local.uri, 0, 20, attempt="first"))
        assert prune(local, 1, ONE, failed=over).attempts == 0
    assert prune(local, 1, ONE, failed=over).attempts == 1


def test_what_failed_saves_left_goes_though_the_store_takes_nothing(local: Store) -> None:
    """A full disk may have no room for an empty file either."""
    STATE.write(local, STATE.request(local.uri, 1, 10, attempt="over"))

    def before(operation: str, name: str) -> None:
        if operation in ("create", "now"):
            raise StoreUnavailable("No space left on device")

    pruned = prune(Hooked(local, before), 1, ONE, failed=frozenset({"over"}))
    assert (pruned.attempts, pruned.error) == (1, "No space left on device")
    assert local.sizes("shards/") == {}


def test_an_older_generation_removes_none_of_its_failed_attempts(local: Store) -> None:
    STATE.write(local, STATE.request(local.uri, 1, 10, attempt="over"))
    form(local)
    assert prune(local, 1, ONE, failed=frozenset({"over"})).attempts == 0
    assert len(local.sizes("shards/")) == 2


def test_files_of_a_zombie_go_when_they_are_old_by_the_stores_clock(local: Store) -> None:
    form(local)
    STATE.write(local, STATE.request(local.uri, 1, 10, attempt="zombie"))
    saved(local, 20, generation=2)
    assert prune(local, 2, ONE).attempts == 0
    age(local, "shards/000001-000000010/")
    assert prune(local, 2, ONE).attempts == 1


def test_the_files_that_a_commit_names_stay_beside_those_of_other_attempts(store: Store) -> None:
    STATE.write(store, STATE.request(store.uri, 0, 10, attempt="first"))
    (commit,) = saved(store, 10)
    assert prune(store, 1, ONE).attempts == 1
    assert restored(store, commit.ref)
    assert all(name.startswith(commit.prefix) for name in store.sizes("shards/"))


def test_a_copy_under_way_stays_although_a_later_commit_is_there(local: Store, tmp_path: Path) -> None:
    tier = open_store(str(tmp_path / "tier"))
    first, second = saved(local, 10, 20)
    copy_commit(local, tier, second.ref)
    pruned: list[int] = []

    def stop() -> bool:
        pruned.append(prune(tier, 1, ONE, root=local).attempts)
        return False

    copy_part(local, tier, first.ref, 0, stop=stop)
    assert pruned == [0]
    assert prune(tier, 1, ONE, root=local).attempts == 1  # its lease is over, and no commit came


@pytest.mark.parametrize("committed", [False, True], ids=["what a copy left", "a commit"])
def test_a_copy_does_not_build_on_files_that_are_being_removed(local: Store, tmp_path: Path, committed: bool) -> None:
    tier, refused = open_store(str(tmp_path / "tier")), list[str]()
    first, second = saved(local, 10, 20)
    copy_job_records(local, tier)
    for part in range(2):
        copy_part(local, tier, first.ref, part)
    if committed:
        commit_copied_parts(local, tier, first.ref)
    copy_commit(local, tier, second.ref)
    verify_commit(tier, second.ref)

    def before(operation: str, name: str) -> None:
        if operation == "delete" and name.startswith("shards/") and not refused:
            for copy in (partial(copy_part, writer=0), commit_copied_parts):
                with pytest.raises(CopyFailedError, match="is being pruned there") as caught:
                    copy(local, tier, first.ref)
                refused.append(str(caught.value))

    prune(Hooked(tier, before), 1, ONE, root=local)
    assert (len(refused), steps(tier), len(tier.sizes("shards/"))) == (2, [20], 4)
    copy_commit(local, tier, first.ref)
    assert restored(tier, first.ref) == restored(local, first.ref)


def test_a_copy_is_told_what_hinders_it_how_old_that_is_and_what_ends_it(local: Store, tmp_path: Path) -> None:
    tier = open_store(str(tmp_path / "tier"))
    first, second = saved(local, 10, 20)
    for commit in (first, second):
        copy_commit(local, tier, commit.ref)
        verify_commit(tier, commit.ref)

    def before(operation: str, name: str) -> None:
        if operation == "delete" and name.startswith("shards/"):
            raise StoreUnavailable("it is away")

    def refused() -> str:
        with pytest.raises(CopyFailedError) as caught:
            copy_part(local, tier, first.ref, 0)
        return str(caught.value).replace(tier.uri, "/backup/my-job")

    assert prune(Hooked(tier, before), 1, ONE, root=local).error == "it is away"
    at_first = refused()
    age(tier, "removing/")
    later = refused()
    assert f"`{at_first}`" in DOCUMENT.read_text()
    assert f"`{later}`" in DOCUMENT.read_text()
    assert at_first != later
    prune(tier, 1, ONE, root=local)
    copy_commit(local, tier, first.ref)


def test_the_evidence_of_damage_outlives_its_commit(local: Store) -> None:
    commits = saved(local, 10, 20, 30)
    mark_damaged(local, commits[0].ref, "a flipped bit")
    assert prune(local, 1, ONE).commits == [commits[0].ref, commits[1].ref]
    assert local.sizes("damaged/").keys() == {"damaged/000001-000000010.json"}


def test_a_damaged_newest_commit_does_not_let_the_good_ones_before_it_go(local: Store) -> None:
    commits = saved(local, 10, 20, 30)
    mark_damaged(local, commits[2].ref, "a flipped bit")
    assert prune(local, 1, ONE).commits == [commits[0].ref]
    assert steps(local) == [20, 30]


def test_what_was_to_stay_and_is_found_damaged_meanwhile_keeps_the_ones_before_it(local: Store) -> None:
    commits = saved(local, 10, 20)

    def before(operation: str, name: str) -> None:
        if operation == "delete":
            mark_damaged(local, commits[1].ref, "a flipped bit")

    pruned = prune(Hooked(local, before), 1, ONE)
    assert (pruned.commits, steps(local)) == ([], [10, 20])
    assert pruned.error is not None
    assert restored(local, commits[0].ref)


def test_a_commit_object_that_is_no_commit_goes_and_its_files_when_they_are_old(local: Store) -> None:
    commits = saved(local, 10, 20)
    local.write(commits[0].ref.name, b"garbage")
    assert prune(local, 1, ONE).commits == [commits[0].ref]
    assert prune(local, 1, ONE).attempts == 1


def test_a_prune_that_is_stopped_half_way_is_finished_by_the_next(local: Store) -> None:
    commits = saved(local, 10, 20)
    asked = iter([False, False, True])
    assert prune(local, 1, ONE, stop=lambda: next(asked)).commits == [commits[0].ref]
    left = local.sizes(f"shards/{commits[0].ref.stem}/")
    assert 0 < len(left) < 4
    assert not any("part-00000" in name for name in left)
    prune(local, 1, ONE)
    assert local.sizes(f"shards/{commits[0].ref.stem}/") == {}


def test_pruning_that_is_killed_at_any_point_leaves_each_commit_whole_or_is_finished_later() -> None:
    outcomes = set[tuple[int, ...]]()
    for point in itertools.count():
        store = MemoryStore()
        form(store)
        STATE.write(store, STATE.request(store.uri, 1, 10, attempt="aborted"))
        saved(store, 20, 30, 40)
        actor = Actor(store, lambda actor, view: prune(view, 1, ONE))
        for _ in range(point):
            actor.step()
        if actor.done:
            break
        actor.kill()
        for _ in range(2):
            store.clock += 7200
            assert prune(store, 1, RetentionConfig(keep_last=3)).error is None  # wants nothing of the lineage removed
        left = parse_commits(store.sizes("commits/"))
        assert {name.split("/")[1] for name in store.sizes("shards/")} == {ref.stem for ref in left}
        assert store.sizes("removing/") == {}
        for ref in left:
            assert restored(store, ref) == [STATE.data(writer, ref.step) for writer in range(2)]
        outcomes.add(tuple(sorted(ref.step for ref in left)))
    assert outcomes == {(20, 30, 40), (30, 40), (40,)}


def test_of_two_that_prune_at_once_neither_puts_back_what_the_other_removes(local: Store) -> None:
    """The older generation learns that it is superseded after the newer one has removed the commit's files."""
    saved(local, 10, 20)
    other: list[list[CommitRef]] = []

    def before(operation: str, name: str) -> None:
        if operation == "delete" and name.startswith("commits/") and not other:
            form(local)
            other.append(prune(local, 2, ONE).commits)

    pruned = prune(Hooked(local, before), 1, ONE)
    assert (pruned.commits, other) == ([], [[]])
    assert restored(local, CommitRef(generation=1, step=10))
    assert [ref.step for ref in prune(local, 2, ONE).commits] == [10]


def test_uploads_that_nobody_will_finish_are_aborted_when_they_are_old(
    s3_uri: str, s3_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked = open_store(s3_uri), list[float]()
    form(store)
    bucket, _, prefix = s3_uri.removeprefix("s3://").partition("/")
    key = f"{prefix}/shards/000001-000000010/x/00000.000.bin"
    s3_client.create_multipart_upload(Bucket=bucket, Key=key)  # which moto says was begun in 2010
    with lease(store, CommitRef(generation=1, step=10)):  # a copy that takes long
        assert prune(store, 1, ONE).error is None
    assert len(s3_client.list_multipart_uploads(Bucket=bucket)["Uploads"]) == 1
    assert prune(store, 1, ONE).error is None
    assert s3_client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []

    monkeypatch.setattr(store, "abort_multipart_uploads", lambda prefix, begun, spared: asked.append(begun))
    prune(store, 1, ONE)
    assert [abs(store.now() - 3600 - older_than) < 5 for older_than in asked] == [True]


def test_the_inventory_tells_times_by_the_stores_clock(store: Store) -> None:
    saved(store, 10)
    held = take_inventory(store)
    assert all(abs(held.now - made) < 5 for made in held.commits.values())
    assert [abs(held.now - attempt.changed) < 5 for attempt in held.attempts] == [True]
