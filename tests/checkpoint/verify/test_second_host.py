"""Who reads again what a host has found damaged."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.format import Commit, file_name
from convoy.checkpoint.verify import marks
from convoy.checkpoint.verify.commit import SuspectedError, verify_part
from convoy.checkpoint.verify.marks import damaged_in, mark_damaged, read_damage, suspicions, verified_in
from convoy.checkpoint.verify.second_host import (
    DamageFinding,
    RereadResult,
    WitnessedFinding,
    find_confirmed_damage,
    plan_rereads,
    rereading_rank,
    settle_suspicions,
)
from convoy.storage import Store, StoreUnavailable, open_store
from tests.campaign import examples
from tests.checkpoint.shims import Faulty
from tests.checkpoint.torchless import TinyState, form

pytestmark = pytest.mark.campaign


def finding(rank: int, part: int | None = 0) -> DamageFinding:
    return DamageFinding(rank, part, "a flipped bit")


def test_the_lowest_rank_of_another_host_reads_again() -> None:
    hosts = ["a", "a", "b", "b"]
    assert plan_rereads([finding(2)], hosts) == [WitnessedFinding(finding(2), 0)]
    assert plan_rereads([finding(1)], hosts) == [WitnessedFinding(finding(1), 2)]


def test_of_a_host_that_finds_much_only_one_finding_is_checked() -> None:
    assert plan_rereads([finding(2, 1), finding(3, 0)], ["a", "a", "b", "b"]) == [WitnessedFinding(finding(2, 1), 0)]


def test_where_there_is_one_host_nobody_is_asked() -> None:
    assert plan_rereads([finding(0), finding(1)], ["a", "a"]) == []


def test_two_hosts_that_found_the_same_part_need_no_third() -> None:
    hosts = ["a", "b", "b"]
    assert find_confirmed_damage([finding(1, 3), finding(0, 3)], hosts) == WitnessedFinding(finding(1, 3), 0)
    assert find_confirmed_damage([finding(1, 3), finding(2, 3)], hosts) is None  # the same host
    assert find_confirmed_damage([finding(0, 2), finding(1, 3)], hosts) is None


@examples(200)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.data())
def test_every_host_with_a_finding_is_checked_once_by_another(hosts: list[str], data: st.DataObject) -> None:
    ranks = data.draw(st.lists(st.integers(0, len(hosts) - 1), unique=True))
    asked = plan_rereads([finding(rank) for rank in ranks], hosts)
    assert all(hosts[q.witness] != hosts[q.finding.rank] for q in asked)
    checked = [hosts[q.finding.rank] for q in asked]
    assert sorted(checked) == (sorted({hosts[rank] for rank in ranks}) if len(set(hosts)) > 1 else [])


def test_a_suspected_part_is_read_by_its_writer_or_the_next_rank_elsewhere() -> None:
    hosts = ["a", "a", "b", "b"]
    assert [rereading_rank(part, "a", hosts) for part in range(6)] == [2, 2, 2, 3, 2, 2]
    assert [rereading_rank(part, "gone", hosts) for part in range(4)] == [0, 1, 2, 3]
    assert rereading_rank(0, "a", ["a", "a"]) is None


STATE = TinyState()
HOSTS = ["a", "b"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(str(tmp_path))
    form(made)
    return made


def suspected(store: Store) -> Commit:
    """A commit of whose part 1 host a reads the data wrongly."""
    commit = STATE.save(store, 10)
    misread(store, commit)
    return commit


def misread(store: Store, commit: Commit) -> None:
    wrong: Any = Faulty(store)
    wrong.garble(commit.prefix + file_name(1, 0), 1000)
    with pytest.raises(SuspectedError):
        verify_part(wrong, commit.ref, 1, host="a")


def settled(store: Any, rank: int) -> list[RereadResult]:
    return list(settle_suspicions(store, rank, HOSTS))


def test_what_another_host_reads_whole_is_whole_and_the_first_host_is_named(store: Store) -> None:
    commit = suspected(store)
    verify_part(store, commit.ref, 0)
    assert settled(store, 0) == []  # its own suspicion
    (found,) = settled(store, 1)
    assert (found.ref, found.part, found.misread_by) == (commit.ref, 1, "a")
    assert found.error.startswith(f"a reads part 1 of {commit.ref.name} otherwise than b, which finds it whole: ")
    assert (damaged_in(store), suspicions(store), verified_in(store)) == (frozenset(), [], {commit.ref})
    assert settled(store, 1) == []


def test_what_another_host_finds_damaged_too_is_marked(store: Store) -> None:
    commit = suspected(store)
    name = commit.prefix + file_name(1, 0)
    store.write(name, bytes(3000))
    (found,) = settled(store, 1)
    assert (found.part, found.damaged, found.misread_by) == (1, True, "")
    evidence = read_damage(store, commit.ref)
    assert evidence is not None
    assert (evidence.host, evidence.confirmed_by) == ("a", "b")
    assert suspicions(store) == []


def test_it_is_read_from_the_storage_and_not_from_the_cache_of_who_wrote_it(store: Store) -> None:
    commit, seen = suspected(store), Faulty(store)
    settled(seen, 1)
    assert ("drop_cache", commit.prefix + file_name(1, 0)) in seen.calls


def test_a_part_that_cannot_be_read_settles_nothing_and_holds_up_no_other_suspicion(store: Store) -> None:
    commits, seen = [STATE.save(store, step, attempt=str(step)) for step in (10, 20)], Faulty(store)
    for commit in commits:
        misread(store, commit)
    seen.fail(commits[0].prefix + file_name(1, 0))
    unreadable, whole = settled(seen, 1)
    assert (unreadable.ref, unreadable.damaged, unreadable.misread_by) == (commits[0].ref, False, "")
    assert unreadable.error.endswith("is out of reach")
    assert (whole.ref, whole.misread_by) == (commits[1].ref, "a")
    assert [s.ref for s in suspicions(store)] == [commits[0].ref]


def test_where_it_is_not_known_what_is_suspected_that_is_an_outage(store: Store) -> None:
    suspected(store)
    seen = Faulty(store)
    seen.fail("suspected/")
    with pytest.raises(StoreUnavailable):
        settled(seen, 1)


@pytest.mark.parametrize("said", [b"", b"{}", b"\xff"])
def test_a_suspicion_that_is_not_readable_itself_is_settled_by_reading_the_part(store: Store, said: bytes) -> None:
    commit = suspected(store)
    (found,) = suspicions(store)
    store.write(found.name, said)
    assert (settled(store, 1), suspicions(store)) == ([], [])

    misread(store, commit)
    store.write(found.name, said)
    store.write(commit.prefix + file_name(1, 0), bytes(3000))
    assert settled(store, 1) == []  # one host's word is not readable: that of the other is one alone
    assert (len(suspicions(store)), damaged_in(store)) == (2, frozenset())
    (other,) = settled(store, 0)
    assert (other.damaged, damaged_in(store), suspicions(store)) == (True, {commit.ref}, [])


def test_a_suspicion_of_a_commit_that_is_gone_or_damaged_is_dropped(store: Store) -> None:
    commit = suspected(store)
    mark_damaged(store, commit.ref, "found elsewhere")
    assert (settled(store, 1), suspicions(store)) == ([], [])
    store.delete(f"damaged/{commit.ref.stem}.json")
    misread(store, commit)
    store.delete(commit.ref.name)
    assert (settled(store, 1), suspicions(store)) == ([], [])


def test_damage_that_both_hosts_read_wrongly_one_after_the_other_is_not_told_as_damage(store: Store) -> None:
    """The first host's suspicion is dismissed while the second reads: it is one host's word again."""
    commit, seen = suspected(store), Faulty(store)
    seen.garble(commit.prefix + file_name(1, 0), 1000)

    def stop() -> bool:
        marks.dismiss_suspicions(store, *suspicions(store))
        return False

    wrong: Any = seen
    assert list(settle_suspicions(wrong, 1, HOSTS, stop=stop)) == []
    assert ([s.host for s in suspicions(store)], damaged_in(store)) == (["b"], frozenset())


def test_without_a_suspicion_it_is_one_listing(store: Store) -> None:
    STATE.save(store, 10)
    seen = Faulty(store)
    settled(seen, 1)
    assert seen.calls == []
