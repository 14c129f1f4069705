"""Between saves every part is read back once, by another host where there is one, and nobody who is busy is asked."""

from collections.abc import Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.messages import PostCommitRequest
from convoy.checkpoint.save.post_commit import BusyTiers, part_to_read, post_commit_request
from convoy.checkpoint.save.queue import StatusCounts
from convoy.job.lineage import CommitRef
from tests.campaign import examples

pytestmark = pytest.mark.campaign

TIERS = ["root", "near", "far"]
REF = CommitRef(generation=1, step=5)
IDLE = BusyTiers()


def busy(reading_back: Set[int] = frozenset(), copying: Set[int] = frozenset()) -> BusyTiers:
    return BusyTiers(frozenset(reading_back), frozenset(copying))


def asked(rank: int = 0, tier: int = 0, busy: BusyTiers = IDLE, verify: bool = True) -> PostCommitRequest:
    return post_commit_request(REF, tier, TIERS, rank, ["a", "a", "b", "b"], 3, verify, busy)


@pytest.mark.parametrize("hosts", [["a"], ["a", "a"], ["a", "b", "c"], ["a", "a", "b", "b", "c", "c"], ["a", "b", "a"]])
def test_each_part_is_read_by_one_rank_in_each_turn(hosts: list[str]) -> None:
    for turn in range(4):
        read = [part_to_read(rank, hosts, turn) for rank in range(len(hosts))]
        assert sorted(part for part, _ in read) == list(range(len(hosts)))
        assert [away for _, away in read] == [hosts[part] != hosts[rank] for rank, (part, _) in enumerate(read)]


def test_a_commit_is_read_back_where_it_is_and_where_it_is_copied_to() -> None:
    request = asked(rank=1, tier=1)
    assert (request.tier, request.copy_to, request.prune) == ("near", ["root", "far"], False)
    assert (request.verify_part, request.verify_copies, request.drop_cache) == (3, 3, False)
    assert asked(rank=0).prune
    unread = asked(verify=False)
    assert (unread.verify_part, unread.verify_copies, unread.copy_to) == (None, None, ["near", "far"])


def test_where_some_rank_is_busy_nothing_is_asked_and_elsewhere_it_is() -> None:
    reading, copying = asked(busy=busy(reading_back={0})), asked(busy=busy(copying={1}))
    assert (reading.verify_part, reading.copy_to, reading.verify_copies) == (None, ["near", "far"], 2)
    assert (copying.verify_part, copying.copy_to, copying.verify_copies) == (2, ["far"], 2)
    other = asked(busy=busy(reading_back={1}, copying={0}))
    assert (other.verify_part, other.copy_to) == (2, ["near", "far"])
    all_of_it = asked(busy=busy({0, 1, 2}, {0, 1, 2}))
    assert (all_of_it.verify_part, all_of_it.copy_to, all_of_it.verify_copies) == (None, [], None)
    assert all_of_it.prune


PLACES = st.frozensets(st.integers(0, len(TIERS) - 1))


@examples(200)
@given(st.integers(0, len(TIERS) - 1), st.builds(BusyTiers, PLACES, PLACES), st.builds(BusyTiers, PLACES, PLACES))
def test_what_was_left_out_is_made_up_for_once_and_nothing_else(tier: int, first: BusyTiers, later: BusyTiers) -> None:
    left = first.part_for_commit_on(tier)
    made_up, at_the_end = left - later, left - (left - later)
    requests = [
        asked(tier=tier, busy=b) for b in (first, made_up.complement(len(TIERS)), at_the_end.complement(len(TIERS)))
    ]
    assert [request.verify_part is not None for request in requests].count(True) == 1
    copies = [uri for request in requests for uri in request.copy_to]
    assert sorted(copies) == sorted(uri for uri in TIERS if uri != TIERS[tier])


def test_what_any_rank_is_busy_with_is_told_by_the_sums() -> None:
    sums = StatusCounts(committed=1, reading_back=(0, 2, 0), copying=(1, 0, 3))
    assert BusyTiers.from_sums(sums) == busy({1}, {0, 2})
    assert BusyTiers.from_sums(StatusCounts(failed=3)) == BusyTiers()
