"""What ranks conclude from each other's views of their saves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.save.agreement import View, agreed
from convoy.checkpoint.save.post_commit import Busy
from convoy.checkpoint.save.queue import MOST
from tests.campaign import examples

pytestmark = pytest.mark.campaign


def view(added: int, settled: int, newest: int = 0, first_tier: int = 0) -> View:
    """A rank that has settled the first so many of the saves that were added; save n is of step 10 n."""
    under_way = range(settled, added)
    return View(
        under_way=dict.fromkeys(under_way, 0),
        steps={number: 10 * number for number in under_way},
        settled=dict.fromkeys(range(max(0, settled - 8), settled)),
        newest=newest,
        first_tier=first_tier,
    )


def test_a_save_is_under_way_until_any_rank_has_settled_it() -> None:
    assert agreed([view(3, 1), view(3, 2)]).steps == {20}
    assert agreed([view(3, 1), view(3, 1)]).steps == {10, 20}
    assert [agreed([view(3, first), view(3, 1)]).may_add for first in (1, 2)] == [False, True]


def test_the_newest_commit_is_that_of_the_rank_which_knows_most() -> None:
    assert agreed([view(3, 1, newest=10), view(3, 2, newest=20)]).newest == 20


def test_a_save_begins_past_the_tier_that_any_rank_knows_to_take_nothing() -> None:
    assert agreed([view(3, 3, first_tier=1), view(3, 2)]).first_tier == 1
    assert agreed([view(3, 3), view(3, 2)]).first_tier == 0


def test_what_one_rank_is_still_busy_with_is_asked_of_none() -> None:
    first, second = Busy(reading_back=frozenset({1})), Busy(reading_back=frozenset({0}), copying=frozenset({2}))
    told = agreed([View(busy=first), View(busy=second), View()])
    assert told.busy == Busy(reading_back=frozenset({0, 1}), copying=frozenset({2}))
    assert agreed([View(), View()]).busy == Busy()


def test_one_rank_that_was_overtaken_is_enough() -> None:
    assert agreed([view(1, 0), View(superseded="generation 2")]).superseded == "generation 2"


@examples(200)
@given(st.integers(0, 30), st.lists(st.integers(0, MOST), min_size=1, max_size=4))
def test_a_save_begins_exactly_if_each_rank_has_a_free_buffer_when_it_knows_what_the_others_know(
    added: int, behind: list[int]
) -> None:
    settled = [max(0, added - left) for left in behind]
    assert agreed([view(added, done) for done in settled]).may_add == (added - max(settled) < MOST)
