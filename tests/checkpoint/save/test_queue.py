"""The saves of a gang: at most two, never under one name twice, and the same on every rank."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.save.queue import MOST, SaveQueue, SettleResult, StatusCounts, WriteAttempt
from tests.campaign import examples

pytestmark = pytest.mark.campaign

NOTHING = StatusCounts()
FAILED = StatusCounts(failed=1)
COMMITTED = StatusCounts(committed=1)


def test_a_save_starts_at_once_and_a_second_one_waits_for_it() -> None:
    queue = SaveQueue(1, "s")
    first = queue.add(10)
    assert first is not None
    assert queue.add(20) is None
    assert not queue.has_free_slot()
    assert queue.steps == [10, 20]

    settled = queue.settle(COMMITTED)

    assert settled.committed == first
    assert settled.start is not None
    assert (settled.start.step, settled.start.slot) == (20, 1)
    assert queue.has_free_slot()


def test_what_failed_is_tried_whole_on_the_next_tier_from_the_same_buffer_under_a_new_name() -> None:
    queue = SaveQueue(2, "s")
    first = queue.add(10)
    assert first is not None
    moved = queue.settle(FAILED)
    assert moved.moved == first
    assert moved.start is not None
    assert (moved.start.step, moved.start.slot, moved.start.tier) == (10, first.slot, 1)
    assert moved.start.name != first.name

    settled = queue.settle(FAILED)

    assert settled.abandoned == moved.start
    assert settled.start is None
    assert queue.failures == 1
    assert queue.steps == []


def test_a_commit_counts_although_a_rank_failed_after_its_part_and_ends_the_row_of_failures() -> None:
    queue = SaveQueue(1, "s")
    queue.add(1)
    queue.settle(FAILED)
    queue.add(2)
    assert queue.settle(StatusCounts(failed=1, committed=1)).committed is not None
    assert queue.failures == 0


def began_on(queue: SaveQueue, down: set[int]) -> list[int]:
    """The tiers that a save was tried on, one after the other, while these are down."""
    attempt, tried = queue.add(1, tier=None), []
    while attempt is not None:
        tried.append(attempt.tier)
        attempt = queue.settle(FAILED if attempt.tier in down else COMMITTED).start
    return tried


def test_a_first_tier_that_is_down_costs_few_saves_their_deadline_there() -> None:
    queue = SaveQueue(2, "s")
    saves = [began_on(queue, {0}) for _ in range(300)]
    tried = [i for i, tiers in enumerate(saves) if 0 in tiers]
    assert [later - earlier - 1 for earlier, later in pairwise(tried)] == [4, 8, 16, 32, 64, 64, 64]
    assert all(tiers == ([0, 1] if i in tried else [1]) for i, tiers in enumerate(saves))


def test_a_commit_on_the_first_tier_makes_it_the_first_again_with_the_first_patience() -> None:
    queue = SaveQueue(2, "s")
    for _ in range(20):
        began_on(queue, {0})
    until = next(i for i in range(100) if began_on(queue, set()) == [0])
    assert until < 16
    assert [began_on(queue, set()) for _ in range(5)] == [[0]] * 5
    assert [began_on(queue, {0}) for _ in range(6)] == [[0, 1], [1], [1], [1], [1], [0, 1]]


def test_a_save_that_begins_elsewhere_is_still_tried_on_every_tier_before_it_is_given_up() -> None:
    queue = SaveQueue(3, "s")
    assert began_on(queue, {0, 1}) == [0, 1, 2]
    assert began_on(queue, {1, 2}) == [2, 0]
    assert began_on(queue, set()) == [0]
    assert began_on(queue, {0}) == [0, 1]
    assert began_on(queue, {0, 1, 2}) == [1, 2, 0]
    assert queue.failures == 1


def test_a_save_that_waits_begins_where_the_one_before_it_was_committed() -> None:
    queue = SaveQueue(2, "s")
    queue.add(1, tier=None)
    queue.add(2, tier=None)
    queue.settle(FAILED)
    settled = queue.settle(COMMITTED)
    assert settled.start is not None
    assert (settled.start.step, settled.start.tier, settled.start.tried) == (2, 1, 0)


def away(*tiers: int, of: int = 3, failed: int = 0, committed: int = 0) -> StatusCounts:
    """What the ranks know where an agent of theirs does not reach these tiers."""
    ranks = tuple(int(tier in tiers) for tier in range(of))
    return StatusCounts(failed=failed, committed=committed, reading_back=(0,) * of, copying=(0,) * of, away=ranks)


def test_a_save_begins_on_a_tier_that_is_not_away_and_on_the_first_as_soon_as_that_is_back() -> None:
    queue = SaveQueue(3, "s")
    queue.settle(away(0, 1))
    begun = queue.add(1, tier=None)
    assert begun is not None
    assert begun.tier == 2
    queue.add(2, tier=None)
    settled = queue.settle(away(committed=1))
    assert settled.start is not None
    assert (settled.start.step, settled.start.tier) == (2, 0)


def test_a_save_does_not_wait_for_its_deadline_on_a_tier_that_is_away() -> None:
    queue = SaveQueue(3, "s")
    queue.add(1, tier=None)
    assert queue.settle(away(1)) == SettleResult()
    settled = queue.settle(away(0, 1))
    assert settled.moved is not None
    assert settled.start is not None
    assert (settled.moved.tier, settled.start.tier, settled.start.tried) == (0, 2, 1)
    assert settled.moved.name != settled.start.name
    assert queue.settle(away(0, 1)) == SettleResult()
    assert queue.settle(away(0, 1, committed=1)).committed is not None


def test_a_commit_counts_on_a_tier_that_is_away_since() -> None:
    queue = SaveQueue(2, "s")
    queue.add(1, tier=None)
    assert queue.settle(away(0, of=2, committed=1)).committed is not None


def test_where_all_tiers_are_away_saves_go_on_as_if_none_were() -> None:
    queue = SaveQueue(2, "s")
    everything = away(0, 1, of=2)
    queue.settle(everything)
    begun = queue.add(1, tier=None)
    assert begun is not None
    assert begun.tier == 0
    assert queue.settle(everything) == SettleResult()
    settled = queue.settle(away(0, 1, of=2, failed=1))
    assert settled.start is not None
    assert settled.start.tier == 1
    assert queue.settle(away(0, 1, of=2, failed=1)).abandoned is not None


def test_the_only_tier_is_never_left() -> None:
    queue = SaveQueue(1, "s")
    queue.add(1, tier=None)
    assert queue.settle(away(0, of=1)) == SettleResult()
    assert queue.settle(away(0, of=1, failed=1)).abandoned is not None


def test_a_tier_that_the_gang_agreed_on_stays_what_it_is() -> None:
    queue = SaveQueue(2, "s")
    queue.add(1, tier=0)
    queue.add(2, tier=0)
    queue.settle(FAILED)
    settled = queue.settle(COMMITTED)
    assert settled.start is not None
    assert (settled.start.step, settled.start.tier) == (2, 0)
    assert queue.next_tier == 1


@given(
    tiers=st.integers(1, 4),
    seen=st.lists(st.tuples(st.booleans(), st.booleans(), st.sets(st.integers(0, 3))), max_size=40),
)
@examples(200)
def test_ranks_that_learn_at_different_moments_write_the_same_where_the_highest_tier_they_tell_is_taken(
    tiers: int, seen: list[tuple[bool, bool, set[int]]]
) -> None:
    """Each save: whether either rank has settled the one before it when they tell each other, and what is down."""
    ranks = [SaveQueue(tiers, "s"), SaveQueue(tiers, "s")]
    unheard: list[list[StatusCounts]] = [[], []]
    for one, other, down in seen:
        for queue, late, learns in zip(ranks, unheard, (one, other), strict=True):
            if learns:
                _hear(queue, late)
        tier = max(queue.next_tier for queue in ranks)
        for queue, late in zip(ranks, unheard, strict=True):
            _hear(queue, late)  # the rest, before it adds the next
        begun = [queue.add(1, tier) for queue in ranks]
        assert begun[0] == begun[1]
        assert begun[0] is not None
        assert begun[0].tier == tier < tiers
        order = [(tier + i) % tiers for i in range(tiers)]
        up = [i for i, tier in enumerate(order) if tier not in down]
        for late in unheard:
            late += [FAILED] * up[0] + [COMMITTED] if up else [FAILED] * tiers


@examples(100)
@given(st.integers(0, 4), st.data())
def test_sums_of_what_ranks_know_are_those_of_each_tier(tiers: int, data: st.DataObject) -> None:
    counts = st.tuples(*[st.integers(0, 1)] * tiers)
    away = counts.map(lambda ranks: ranks if any(ranks) else ())
    standings = st.builds(StatusCounts, *[st.integers(0, 1)] * 3, counts, counts, away)
    one, other = data.draw(standings), data.draw(standings)
    sums = StatusCounts.from_list([a + b for a, b in zip(one.to_list(), other.to_list(), strict=True)])
    assert StatusCounts.from_list(one.to_list()) == one
    assert sums.committed == one.committed + other.committed
    for tier in range(tiers):
        assert sums.reading_back[tier] == one.reading_back[tier] + other.reading_back[tier]
        assert sums.copying[tier] == one.copying[tier] + other.copying[tier]
        assert bool(sums.away and sums.away[tier]) == any(s.away and s.away[tier] for s in (one, other))


def _hear(queue: SaveQueue, late: list[StatusCounts]) -> None:
    while late:
        queue.settle(late.pop(0))


@given(
    tiers=st.integers(1, 3),
    told=st.lists(
        st.one_of(st.just("save"), st.builds(StatusCounts, *(st.integers(0, 2) for _ in range(2)))), max_size=60
    ),
)
@examples(200)
def test_two_ranks_that_are_told_the_same_always_agree_and_no_name_or_buffer_is_used_twice_at_once(
    tiers: int, told: list[str | StatusCounts]
) -> None:
    ranks = [SaveQueue(tiers, "s"), SaveQueue(tiers, "s")]
    started: list[WriteAttempt] = []
    for step, what in enumerate(told):
        if isinstance(what, StatusCounts):
            settled = [queue.settle(what) for queue in ranks]
            assert settled[0] == settled[1]
            begun = settled[0].start
        else:
            if not ranks[0].has_free_slot():
                continue
            attempts = [queue.add(step, tier=None) for queue in ranks]
            assert attempts[0] == attempts[1]
            begun = attempts[0]
        started += [begun] if begun else []
        assert [q.steps for q in ranks] == [sorted(q.steps) for q in ranks]
        assert len(ranks[0].steps) <= MOST
        assert ranks[0].under_way == (started[-1] if ranks[0].steps else None)
        if ranks[0].has_free_slot() and ranks[0].under_way:
            assert ranks[0].free_slot() != ranks[0].under_way.slot
    assert len({attempt.name for attempt in started}) == len(started)
