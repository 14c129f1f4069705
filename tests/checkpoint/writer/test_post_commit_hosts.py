"""Reading back on several hosts: one that reads wrongly marks nothing and is named; what two read so is damage."""

from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint.format import Commit, file_name
from convoy.checkpoint.messages import PartVerified
from convoy.checkpoint.save.post_commit import host_names
from convoy.checkpoint.save.post_commit import post_commit_request as request_of
from convoy.checkpoint.verify.marks import damaged, read_damage, suspicions, verified
from convoy.storage import Store, open_store
from tests.checkpoint.shims import Faulty
from tests.checkpoint.torchless import TinyState, form
from tests.checkpoint.writer.test_post_commit import Kept

STATE = TinyState(sizes=(5000, 3000, 2000, 1000))
HOSTS = ["bad", "bad", "good", "good"]


@pytest.fixture
def root(tmp_path: Path) -> Store:
    store = open_store(str(tmp_path))
    form(store)
    return store


class BadHost(Faulty):
    """A store as a host sees it that garbles all data."""

    def read_into(self, name: str, start: int, buffer: memoryview) -> int:
        self.garble(name, 1)
        return super().read_into(name, start, buffer)


def post_commit_round(root: Store, turn: int) -> tuple[Commit, list[PartVerified]]:
    """A save, and what all ranks tell of it, the last one first."""
    commit, told = STATE.save(root, 10 * turn, attempt=str(turn)), list[PartVerified]()
    for rank in reversed(range(len(HOSTS))):
        seen: Any = BadHost(root) if HOSTS[rank] == "bad" else root
        kept = Kept({"root": seen})
        kept.inbox.put(request_of(commit.ref, 0, ["root"], rank, HOSTS, turn, True).model_copy(update={"prune": False}))
        told += [report for report in kept.end() if isinstance(report, PartVerified)]
    return commit, told


def test_a_host_that_reads_wrongly_marks_nothing_and_is_named(root: Store) -> None:
    first, told = post_commit_round(root, 1)
    assert [(r.part, r.damaged) for r in told if (r.error or "").endswith("; only bad finds it so yet")] == [
        (3, False),
        (2, False),
    ]
    assert [r.part for r in told if r.error is None] == [1, 0]
    assert [s.host for s in suspicions(root)] == ["bad", "bad"]
    assert (verified(root), damaged(root)) == (frozenset(), frozenset())

    second, told = post_commit_round(root, 2)
    named = [(r.ref, r.part, r.misread_by, r.damaged) for r in told if r.misread_by]
    assert named == [(first.ref, 3, "bad", False), (first.ref, 2, "bad", False)]
    assert verified(root) == {first.ref}
    assert {s.ref for s in suspicions(root)} == {second.ref}

    for turn in range(3, 6):
        post_commit_round(root, turn)
    assert (damaged(root), len(verified(root))) == (frozenset(), 4)


def test_what_a_second_host_finds_too_is_marked_at_the_next_commit(root: Store) -> None:
    commit = STATE.save(root, 5, attempt="5")
    root.write(commit.shards + file_name(0, 0), bytes(5000))
    kept = Kept({"root": root})
    kept.inbox.put(request_of(commit.ref, 0, ["root"], 2, HOSTS, 0, True))
    (first,) = kept.end()
    assert isinstance(first, PartVerified)
    assert (first.part, first.damaged, damaged(root)) == (0, False, frozenset())

    later = STATE.save(root, 15, attempt="15")
    kept = Kept({"root": root})
    kept.inbox.put(request_of(later.ref, 0, ["root"], 0, HOSTS, 1, True).model_copy(update={"prune": False}))
    told = kept.end()
    assert [(r.ref, r.damaged) for r in told if isinstance(r, PartVerified)] == [(commit.ref, True), (later.ref, False)]
    evidence = read_damage(root, commit.ref)
    assert evidence is not None
    assert (evidence.host, evidence.confirmed_by) == ("good", "bad")


def test_suspicions_that_cannot_be_settled_keep_no_later_commit_from_being_verified(root: Store) -> None:
    first, _ = post_commit_round(root, 1)
    second, told = STATE.save(root, 20, attempt="2"), list[PartVerified]()
    seen = Faulty(root)
    seen.fail(first.shards + file_name(2, 0))
    (unreadable,) = (s for s in suspicions(root) if s.part == 3)
    root.write(unreadable.name, b"not a suspicion")
    for rank in range(len(HOSTS)):
        kept = Kept({"root": seen})
        kept.inbox.put(request_of(second.ref, 0, ["root"], rank, HOSTS, 2, True).model_copy(update={"prune": False}))
        told += [report for report in kept.end() if isinstance(report, PartVerified)]

    assert verified(root) == {second.ref}
    assert [(r.ref, r.part, r.damaged) for r in told if r.error is not None] == [(first.ref, 2, False)]
    assert [s.part for s in suspicions(root)] == [2]  # it is looked at again; the one that says nothing was read anew


def test_on_one_host_damage_is_marked_at_once(root: Store) -> None:
    commit = STATE.save(root, 5, attempt="5")
    root.write(commit.shards + file_name(1, 0), bytes(3000))
    kept = Kept({"root": root})
    kept.inbox.put(request_of(commit.ref, 0, ["root"], 0, ["one"] * 4, 0, True).model_copy(update={"prune": False}))
    (told,) = kept.end()
    assert isinstance(told, PartVerified)
    assert (told.part, told.damaged, damaged(root)) == (1, True, {commit.ref})


def test_hosts_of_one_name_are_told_apart_by_their_place() -> None:
    assert host_names(["a", "a", "b", "b"], 2) == ["a", "a", "b", "b"]
    assert host_names(["a", "a", "a", "a"], 2) == ["a-0", "a-0", "a-1", "a-1"]
    assert host_names(["a", "a"], 2) == ["a", "a"]
