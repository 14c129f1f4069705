"""The saves of a gang: at most two, never under one name twice, and the same on every rank."""

from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.queue import MOST, Attempt, SaveQueue, Standing
from tests.campaign import examples

NOTHING = Standing()
FAILED = Standing(failed=1)
COMMITTED = Standing(committed=1)


def test_a_save_starts_at_once_and_a_second_one_waits_for_it() -> None:
    queue = SaveQueue(1, "s")
    first = queue.add(10)
    assert first is not None
    assert queue.add(20) is None
    assert not queue.may_add()
    assert queue.steps == [10, 20]

    settled = queue.settle(COMMITTED)

    assert settled.committed == first
    assert settled.start is not None
    assert (settled.start.step, settled.start.slot) == (20, 1)
    assert queue.may_add()


def test_nothing_known_changes_nothing() -> None:
    queue = SaveQueue(2, "s")
    first = queue.add(10)
    assert queue.settle(NOTHING) == queue.settle(NOTHING)
    assert queue.under_way == first


def test_what_failed_is_tried_whole_on_the_next_tier_from_the_same_buffer_under_a_new_name() -> None:
    queue = SaveQueue(2, "s")
    first = queue.add(10)
    assert first is not None
    moved = queue.settle(FAILED)
    assert moved.moved == first
    assert moved.start is not None
    assert (moved.start.step, moved.start.slot, moved.start.tier) == (10, first.slot, 1)
    assert moved.start.name != first.name

    given_up = queue.settle(FAILED)

    assert given_up.given_up == moved.start
    assert given_up.start is None
    assert queue.failures == 1
    assert queue.steps == []


def test_a_commit_counts_although_a_rank_failed_after_its_part_and_ends_the_row_of_failures() -> None:
    queue = SaveQueue(1, "s")
    queue.add(1)
    queue.settle(FAILED)
    queue.add(2)
    assert queue.settle(Standing(failed=1, committed=1)).committed is not None
    assert queue.failures == 0


def test_a_save_after_a_failure_begins_on_the_first_tier_again() -> None:
    queue = SaveQueue(2, "s")
    queue.add(1)
    queue.settle(FAILED)
    queue.settle(COMMITTED)
    again = queue.add(2)
    assert again is not None
    assert again.tier == 0


def test_a_superseded_gang_learns_it() -> None:
    queue = SaveQueue(1, "s")
    queue.add(1)
    assert queue.settle(Standing(failed=1, superseded=1)).superseded


@given(
    tiers=st.integers(1, 3),
    told=st.lists(st.one_of(st.just("save"), st.builds(Standing, *(st.integers(0, 2) for _ in range(2)))), max_size=60),
)
@examples(200)
def test_two_ranks_that_are_told_the_same_always_agree_and_no_name_or_buffer_is_used_twice_at_once(
    tiers: int, told: list[str | Standing]
) -> None:
    ranks = [SaveQueue(tiers, "s"), SaveQueue(tiers, "s")]
    started: list[Attempt] = []
    for step, what in enumerate(told):
        if isinstance(what, Standing):
            settled = [queue.settle(what) for queue in ranks]
            assert settled[0] == settled[1]
            begun = settled[0].start
        else:
            if not ranks[0].may_add():
                continue
            attempts = [queue.add(step) for queue in ranks]
            assert attempts[0] == attempts[1]
            begun = attempts[0]
        started += [begun] if begun else []
        assert [q.steps for q in ranks] == [sorted(q.steps) for q in ranks]
        assert len(ranks[0].steps) <= MOST
        assert ranks[0].under_way == (started[-1] if ranks[0].steps else None)
        if ranks[0].may_add() and ranks[0].under_way:
            assert ranks[0].free_slot() != ranks[0].under_way.slot
    assert len({attempt.name for attempt in started}) == len(started)
