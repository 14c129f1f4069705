"""Reading back on several hosts: one that reads wrongly marks nothing and is named; what two read so is damage."""

from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint.format import Commit, file_name
from convoy.checkpoint.messages import PartVerified
from convoy.checkpoint.save.post_commit import distinct_host_names
from convoy.checkpoint.save.post_commit import post_commit_request as request_of
from convoy.checkpoint.verify.marks import damaged_in, read_damage, suspicions, verified_in
from convoy.job.lineage import CommitRef
from convoy.storage import Store, open_store
from tests.checkpoint.shims import Faulty, Hooked
from tests.checkpoint.torchless import TinyState, form
from tests.checkpoint.writer.test_post_commit import Kept

STATE = TinyState(sizes=(5000, 3000, 2000, 1000))
HOSTS = ["bad", "bad", "good", "good"]


@pytest.fixture
def root(tmp_path: Path) -> Store:
    store = open_store(str(tmp_path))
    form(store)
    return store


def told_by(seen: Any, ref: CommitRef, rank: int, turn: int, hosts: list[str] = HOSTS) -> list[PartVerified]:
    """What a rank tells of a commit, of which it reads back a part but prunes nothing."""
    kept = Kept({"root": seen})
    request = request_of(ref, 0, ["root"], rank, hosts, turn, True)
    kept.inbox.put(request.model_copy(update={"prune": False}))
    return [report for report in kept.end() if isinstance(report, PartVerified)]


def as_bad_host_sees(store: Store) -> Hooked:
    """All data garbled."""
    faulty = Faulty(store)
    return Hooked(faulty, lambda operation, name: operation == "read_into" and faulty.garble(name, 1))


def post_commit_round(root: Store, turn: int) -> tuple[Commit, list[PartVerified]]:
    """A save, and what all ranks tell of it, the last one first."""
    commit, told = STATE.save(root, 10 * turn, attempt=str(turn)), list[PartVerified]()
    for rank in reversed(range(len(HOSTS))):
        told += told_by(as_bad_host_sees(root) if HOSTS[rank] == "bad" else root, commit.ref, rank, turn)
    return commit, told


def test_a_host_that_reads_wrongly_marks_nothing_and_is_named(root: Store) -> None:
    first, told = post_commit_round(root, 1)
    assert [(r.part, r.damaged) for r in told if (r.error or "").endswith("; only bad finds it so yet")] == [
        (3, False),
        (2, False),
    ]
    assert [r.part for r in told if r.error is None] == [1, 0]
    assert [s.host for s in suspicions(root)] == ["bad", "bad"]
    assert (verified_in(root), damaged_in(root)) == (frozenset(), frozenset())

    second, told = post_commit_round(root, 2)
    named = [(r.ref, r.part, r.misread_by, r.damaged) for r in told if r.misread_by]
    assert named == [(first.ref, 3, "bad", False), (first.ref, 2, "bad", False)]
    assert verified_in(root) == {first.ref}
    assert {s.ref for s in suspicions(root)} == {second.ref}

    for turn in range(3, 6):
        post_commit_round(root, turn)
    assert (damaged_in(root), len(verified_in(root))) == (frozenset(), 4)


def test_what_a_second_host_finds_too_is_marked_at_the_next_commit(root: Store) -> None:
    commit = STATE.save(root, 5, attempt="5")
    root.write(commit.prefix + file_name(0, 0), bytes(5000))
    (first,) = told_by(root, commit.ref, 2, 0)
    assert (first.part, first.damaged, damaged_in(root)) == (0, False, frozenset())

    later = STATE.save(root, 15, attempt="15")
    told = told_by(root, later.ref, 0, 1)
    assert [(r.ref, r.damaged) for r in told] == [(commit.ref, True), (later.ref, False)]
    evidence = read_damage(root, commit.ref)
    assert evidence is not None
    assert (evidence.host, evidence.confirmed_by) == ("good", "bad")


def test_suspicions_that_cannot_be_settled_keep_no_later_commit_from_being_verified(root: Store) -> None:
    first, _ = post_commit_round(root, 1)
    second, told = STATE.save(root, 20, attempt="2"), list[PartVerified]()
    seen = Faulty(root)
    seen.fail(first.prefix + file_name(2, 0))
    (unreadable,) = (s for s in suspicions(root) if s.part == 3)
    root.write(unreadable.name, b"not a suspicion")
    for rank in range(len(HOSTS)):
        told += told_by(seen, second.ref, rank, 2)

    assert verified_in(root) == {second.ref}
    assert [(r.ref, r.part, r.damaged) for r in told if r.error is not None] == [(first.ref, 2, False)]
    assert [s.part for s in suspicions(root)] == [2]  # it is looked at again; the one that says nothing was read anew


def test_on_one_host_damage_is_marked_at_once(root: Store) -> None:
    commit = STATE.save(root, 5, attempt="5")
    root.write(commit.prefix + file_name(1, 0), bytes(3000))
    (told,) = told_by(root, commit.ref, 0, 0, ["one"] * 4)
    assert (told.part, told.damaged, damaged_in(root)) == (1, True, {commit.ref})


def test_hosts_of_one_name_are_told_apart_by_their_place() -> None:
    assert distinct_host_names(["a", "a", "b", "b"], 2) == ["a", "a", "b", "b"]
    assert distinct_host_names(["a", "a", "a", "a"], 2) == ["a-0", "a-0", "a-1", "a-1"]
    assert distinct_host_names(["a", "a"], 2) == ["a", "a"]
