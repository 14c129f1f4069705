"""What ranks conclude from each other's views of their saves, and how long one waits for the coordinator alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.save.next_save import CommitDeadline, RankSaves, combine_reports
from convoy.checkpoint.save.post_commit import BusyTiers
from convoy.checkpoint.save.queue import MOST
from tests.campaign import examples

pytestmark = pytest.mark.campaign

LONGEST, SLACK = 10.0, 1.0


def view(added: int, settled: int, newest: int = 0, next_tier: int = 0) -> RankSaves:
    """A rank that has settled the first so many of the saves that were added; save n is of step 10 n."""
    under_way = range(settled, added)
    return RankSaves(
        under_way=dict.fromkeys(under_way, 0),
        steps={number: 10 * number for number in under_way},
        settled=dict.fromkeys(range(max(0, settled - 8), settled)),
        newest=newest,
        next_tier=next_tier,
    )


def test_a_save_is_under_way_until_any_rank_has_settled_it() -> None:
    assert combine_reports([view(3, 1), view(3, 2)]).steps == {20}
    assert combine_reports([view(3, 1), view(3, 1)]).steps == {10, 20}
    assert [combine_reports([view(3, first), view(3, 1)]).has_free_slot for first in (1, 2)] == [False, True]


def test_the_newest_commit_is_that_of_the_rank_which_knows_most() -> None:
    assert combine_reports([view(3, 1, newest=10), view(3, 2, newest=20)]).newest == 20


def test_a_save_begins_past_the_tier_that_any_rank_knows_to_take_nothing() -> None:
    assert combine_reports([view(3, 3, next_tier=1), view(3, 2)]).next_tier == 1
    assert combine_reports([view(3, 3), view(3, 2)]).next_tier == 0


def test_what_one_rank_is_still_busy_with_is_asked_of_none() -> None:
    first = BusyTiers(reading_back=frozenset({1}))
    second = BusyTiers(reading_back=frozenset({0}), copying=frozenset({2}))
    told = combine_reports([RankSaves(busy=first), RankSaves(busy=second), RankSaves()])
    assert told.busy == BusyTiers(reading_back=frozenset({0, 1}), copying=frozenset({2}))
    assert combine_reports([RankSaves(), RankSaves()]).busy == BusyTiers()


def test_one_rank_that_was_overtaken_is_enough() -> None:
    assert combine_reports([view(1, 0), RankSaves(superseded="generation 2")]).superseded == "generation 2"


@examples(200)
@given(st.integers(0, 30), st.lists(st.integers(0, MOST), min_size=1, max_size=4))
def test_a_save_begins_exactly_if_each_rank_has_a_free_buffer_when_it_knows_what_the_others_know(
    added: int, behind: list[int]
) -> None:
    settled = [max(0, added - left) for left in behind]
    assert combine_reports([view(added, done) for done in settled]).has_free_slot == (added - max(settled) < MOST)


def test_next_to_the_coordinator_it_waits_as_long_as_that_may_take() -> None:
    deadline = CommitDeadline(LONGEST, SLACK)
    deadline.note_begun(100.0)
    assert not deadline.is_over(110.9)
    assert deadline.is_over(111.1)


def test_on_a_tier_that_it_came_to_alone_it_waits_for_the_coordinator_to_follow() -> None:
    deadline = CommitDeadline(LONGEST, SLACK)
    deadline.note_begun(100.0)
    deadline.note_settled(101.0, unreported=True)
    deadline.note_begun(101.0)
    assert not deadline.is_over(120.9)  # the coordinator comes at 110
    assert deadline.is_over(121.1)


def test_what_both_have_heard_makes_them_abreast() -> None:
    deadline = CommitDeadline(LONGEST, SLACK)
    deadline.note_begun(100.0)
    deadline.note_settled(101.0, unreported=True)
    deadline.note_begun(101.0)
    deadline.note_settled(112.0, unreported=False)
    deadline.note_begun(112.0)
    assert deadline.is_over(123.1)


def test_what_the_gang_was_told_the_coordinator_knows() -> None:
    deadline = CommitDeadline(LONGEST, SLACK)
    deadline.note_begun(100.0)
    deadline.note_settled(101.0, unreported=True)
    deadline.note_begun(101.0)
    deadline.note_reporting()
    deadline.note_aligned(102.0)
    assert deadline.is_over(113.1)


def test_what_came_after_it_told_the_coordinator_does_not_know() -> None:
    deadline = CommitDeadline(LONGEST, SLACK)
    deadline.note_begun(100.0)
    deadline.note_reporting()
    deadline.note_settled(101.0, unreported=True)
    deadline.note_begun(101.0)
    deadline.note_aligned(102.0)
    assert not deadline.is_over(120.9)


seconds = st.floats(0, LONGEST)


@examples(300)
@given(st.lists(st.tuples(seconds, st.one_of(st.none(), seconds)), max_size=8))
def test_nothing_is_given_up_that_the_coordinator_may_still_commit(attempts: list[tuple[float, float | None]]) -> None:
    """attempts: how long the coordinator takes for each, and after how long this rank settles it; None: with it."""
    deadline, coordinator, rank = CommitDeadline(LONGEST, SLACK), 0.0, 0.0
    for takes, alone in attempts:
        deadline.note_begun(rank)
        coordinator += takes
        assert not deadline.is_over(coordinator)
        rank = max(rank, coordinator) if alone is None else rank + alone
        deadline.note_settled(rank, unreported=alone is not None)
        coordinator = max(coordinator, rank) if alone is None else coordinator
