"""How long a rank waits for the coordinator, which may have begun later."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.save.commit_deadline import Patience
from tests.campaign import examples

pytestmark = pytest.mark.campaign

LONGEST, SLACK = 10.0, 1.0


def test_beside_the_coordinator_it_waits_as_long_as_that_may_take() -> None:
    patience = Patience(LONGEST, SLACK)
    patience.begun(100.0)
    assert not patience.ended(110.9)
    assert patience.ended(111.1)


def test_on_a_tier_that_it_came_to_alone_it_waits_for_the_coordinator_to_follow() -> None:
    patience = Patience(LONGEST, SLACK)
    patience.begun(100.0)
    patience.settled(101.0, alone=True)
    patience.begun(101.0)
    assert not patience.ended(120.9)  # the coordinator comes at 110
    assert patience.ended(121.1)


def test_what_both_have_heard_makes_them_abreast() -> None:
    patience = Patience(LONGEST, SLACK)
    patience.begun(100.0)
    patience.settled(101.0, alone=True)
    patience.begun(101.0)
    patience.settled(112.0, alone=False)
    patience.begun(112.0)
    assert patience.ended(123.1)


def test_what_the_gang_was_told_the_coordinator_knows() -> None:
    patience = Patience(LONGEST, SLACK)
    patience.begun(100.0)
    patience.settled(101.0, alone=True)
    patience.begun(101.0)
    patience.tells()
    patience.aligned(102.0)
    assert patience.ended(113.1)


def test_what_came_after_it_told_the_coordinator_does_not_know() -> None:
    patience = Patience(LONGEST, SLACK)
    patience.begun(100.0)
    patience.tells()
    patience.settled(101.0, alone=True)
    patience.begun(101.0)
    patience.aligned(102.0)
    assert not patience.ended(120.9)


seconds = st.floats(0, LONGEST)


@examples(300)
@given(st.lists(st.tuples(seconds, st.one_of(st.none(), seconds)), max_size=8))
def test_nothing_is_given_up_that_the_coordinator_may_still_commit(attempts: list[tuple[float, float | None]]) -> None:
    """attempts: how long the coordinator takes for each, and after how long this rank settles it; None: with it."""
    patience, coordinator, rank = Patience(LONGEST, SLACK), 0.0, 0.0
    for takes, alone in attempts:
        patience.begun(rank)
        coordinator += takes
        assert not patience.ended(coordinator)
        rank = max(rank, coordinator) if alone is None else rank + alone
        patience.settled(rank, alone=alone is not None)
        coordinator = max(coordinator, rank) if alone is None else coordinator
