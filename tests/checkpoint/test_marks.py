"""Marks of damage and of verification, in a folder and on S3."""

import threading

import pytest

from convoy.checkpoint.marks import (
    damaged,
    forget_verified,
    mark_damaged,
    mark_verified,
    noted,
    read_damage,
    verified,
    verified_parts,
)
from convoy.job.lineage import CommitRef
from convoy.storage import Store, open_store

REF, OTHER = CommitRef(generation=1, step=10), CommitRef(generation=1, step=20)


@pytest.fixture
def store(store_uri: str) -> Store:
    return open_store(store_uri)


def test_the_first_finders_evidence_stays(store: Store) -> None:
    assert damaged(store) == frozenset()
    assert read_damage(store, REF) is None
    first = mark_damaged(store, REF, "chunk 3 does not match")
    assert mark_damaged(store, REF, "chunk 4 does not match") == first == read_damage(store, REF)
    assert (first.error, first.ref, first.tier) == ("chunk 3 does not match", REF, store.uri)
    assert damaged(store) == {REF}


def test_a_commit_is_verified_when_its_last_part_is(store: Store) -> None:
    assert not mark_verified(store, REF, 1, 2)
    assert not mark_verified(store, REF, 1, 2)
    assert (verified(store), verified_parts(store, REF), noted(store)) == (frozenset(), {1}, {REF})
    assert mark_verified(store, REF, 0, 2)
    assert (verified(store), verified_parts(store, REF)) == ({REF}, {0, 1})


def test_parts_that_are_marked_at_the_same_moment_make_a_verified_commit(store: Store) -> None:
    start = threading.Barrier(4)

    def mark(part: int) -> None:
        start.wait()
        mark_verified(store, REF, part, 4)

    threads = [threading.Thread(target=mark, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verified(store) == {REF}


def test_what_was_found_damaged_after_it_was_verified_is_not_verified(store: Store) -> None:
    for ref in (REF, OTHER):
        mark_verified(store, ref, 0, 1)
    mark_damaged(store, REF, "a flipped bit")
    assert verified(store) == {OTHER}


def test_the_marks_of_a_commit_that_is_gone_can_be_forgotten_and_its_evidence_stays(store: Store) -> None:
    for ref in (REF, OTHER):
        mark_verified(store, ref, 0, 1)
    mark_damaged(store, REF, "a flipped bit")
    forget_verified(store, REF)
    assert (noted(store), damaged(store)) == ({OTHER}, {REF})
