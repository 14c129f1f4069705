"""Marks of damage and of verification, in a folder and on S3."""

import threading

from convoy.checkpoint.verify.marks import (
    commits_with_marks,
    damaged_in,
    delete_marks,
    dismiss_suspicions,
    mark_damaged,
    mark_part_verified,
    read_damage,
    read_suspicion,
    reinstate,
    suspect,
    suspicions,
    verified_in,
    verified_parts,
)
from convoy.job.lineage import CommitRef
from convoy.storage import Store

REF, OTHER = CommitRef(generation=1, step=10), CommitRef(generation=1, step=20)


def test_the_first_finders_evidence_stays(store: Store) -> None:
    assert damaged_in(store) == frozenset()
    assert read_damage(store, REF) is None
    first = mark_damaged(store, REF, "chunk 3 does not match")
    assert mark_damaged(store, REF, "chunk 4 does not match") == first == read_damage(store, REF)
    assert (first.error, first.ref, first.tier) == ("chunk 3 does not match", REF, store.uri)
    assert damaged_in(store) == {REF}


def test_a_commit_is_verified_when_its_last_part_is(store: Store) -> None:
    assert not mark_part_verified(store, REF, 1, 2)
    assert not mark_part_verified(store, REF, 1, 2)
    assert (verified_in(store), verified_parts(store, REF), commits_with_marks(store)) == (frozenset(), {1}, {REF})
    assert mark_part_verified(store, REF, 0, 2)
    assert (verified_in(store), verified_parts(store, REF)) == ({REF}, {0, 1})


def test_parts_that_are_marked_at_the_same_moment_make_a_verified_commit(store: Store) -> None:
    start = threading.Barrier(4)

    def mark(part: int) -> None:
        start.wait()
        mark_part_verified(store, REF, part, 4)

    threads = [threading.Thread(target=mark, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verified_in(store) == {REF}


def test_what_was_found_damaged_after_it_was_verified_is_not_verified(store: Store) -> None:
    for ref in (REF, OTHER):
        mark_part_verified(store, ref, 0, 1)
    mark_damaged(store, REF, "a flipped bit")
    assert verified_in(store) == {OTHER}


def test_the_marks_of_a_commit_that_is_gone_can_be_forgotten_and_its_evidence_stays(store: Store) -> None:
    for ref in (REF, OTHER):
        mark_part_verified(store, ref, 0, 1)
    mark_damaged(store, REF, "a flipped bit")
    delete_marks(store, REF)
    assert (commits_with_marks(store), damaged_in(store)) == ({OTHER}, {REF})


def test_one_hosts_word_is_a_suspicion_and_twos_are_a_mark(store: Store) -> None:
    mark_part_verified(store, REF, 0, 1)
    assert suspect(store, REF, 3, "chunk 1 does not match", "host/a") is None
    assert suspect(store, REF, 3, "once more", "host/a") is None
    assert suspect(store, REF, 4, "of another part", "b") is None
    found = suspicions(store)
    assert [(s.ref, s.part, s.host) for s in found] == [(REF, 3, "host-a"), (REF, 4, "b")]
    assert (damaged_in(store), verified_in(store)) == (frozenset(), frozenset())
    evidence = read_suspicion(store, found[0])
    assert evidence is not None
    assert (evidence.host, evidence.error) == ("host/a", "chunk 1 does not match")

    marked = suspect(store, REF, 3, "chunk 2 does not match", "b")

    assert marked == read_damage(store, REF)
    assert marked is not None
    assert (marked.host, marked.confirmed_by, marked.error) == ("host/a", "b", "chunk 1 does not match")
    assert (damaged_in(store), suspicions(store)) == ({REF}, [])


def test_hosts_that_find_the_same_at_one_moment_mark_it(store: Store) -> None:
    start = threading.Barrier(3)

    def find(host: str) -> None:
        start.wait()
        suspect(store, REF, 0, "a flipped bit", host)

    threads = [threading.Thread(target=find, args=(host,)) for host in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert damaged_in(store) == {REF}


def test_a_suspicion_that_is_dismissed_counts_no_more(store: Store) -> None:
    mark_part_verified(store, REF, 0, 1)
    suspect(store, REF, 0, "a flipped bit", "a")
    suspect(store, OTHER, 0, "a flipped bit", "a")
    assert [s.ref for s in suspicions(store, OTHER)] == [OTHER]
    dismiss_suspicions(store, *suspicions(store, REF))
    assert (verified_in(store), [s.ref for s in suspicions(store)]) == ({REF}, [OTHER])


def test_a_suspicion_goes_with_its_commit(store: Store) -> None:
    suspect(store, REF, 0, "a flipped bit", "a")
    assert commits_with_marks(store) == {REF}
    delete_marks(store, REF)
    assert (commits_with_marks(store), suspicions(store)) == (frozenset(), [])


def test_a_mark_can_be_taken_back(store: Store) -> None:
    marked = mark_damaged(store, REF, "a flipped bit")
    assert reinstate(store, REF) == marked
    assert (damaged_in(store), reinstate(store, REF)) == (frozenset(), None)
