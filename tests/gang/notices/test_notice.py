"""A notice leads to an order: with a save if there is time for it."""

from hypothesis import given
from hypothesis import strategies as st

from convoy.config.train import NoticesConfig
from convoy.gang.notices.notice import (
    END_SECONDS,
    FIRST_SAVE_SECONDS,
    Notice,
    ending_evidence,
    order_for,
    seconds_to_end,
    strongest,
)
from convoy.gang.workers.board import OrderKind

CONFIG = NoticesConfig()
NOW = 1_800_000_000.0

seconds = st.floats(0.001, 1000)
orders = st.sampled_from(["none", "save", "save_and_end", "end"])


def end(deadline: float | None) -> Notice:
    return Notice("spot", "end", deadline, "it ends")


def left(remaining: float, save_seconds: float, step_seconds: float) -> OrderKind:
    """The decision with so many seconds left."""
    return order_for(end(NOW + remaining), CONFIG, save_seconds, step_seconds, NOW, unsaved=True)


def test_two_minutes_are_enough_for_a_save_of_a_minute_and_a_half() -> None:
    assert left(120, save_seconds=90, step_seconds=2) == "save_and_end"
    assert left(120, save_seconds=120, step_seconds=2) == "end"


def test_long_steps_leave_less_time() -> None:
    assert left(30, save_seconds=5, step_seconds=10) == "save_and_end"
    assert left(30, save_seconds=5, step_seconds=12) == "end"


def test_a_save_that_was_never_measured_is_tried_where_there_is_some_time() -> None:
    assert left(FIRST_SAVE_SECONDS + 5, save_seconds=0, step_seconds=0.1) == "save_and_end"
    assert left(FIRST_SAVE_SECONDS, save_seconds=0, step_seconds=0.1) == "end"


@given(st.floats(0, 1000), seconds)
def test_at_once_means_without_a_save(save: float, step: float) -> None:
    assert order_for(end(0), CONFIG, save, step, NOW, unsaved=True) == "end"
    assert left(-1, save, step) == "end"


@given(st.floats(0, 1e6), seconds)
def test_where_there_is_no_hurry_it_is_saved(save: float, step: float) -> None:
    assert order_for(end(None), CONFIG, save, step, NOW, unsaved=True) == "save_and_end"


@given(st.floats(0, 1000), st.none() | st.floats(0, 2 * NOW))
def test_before_a_step_was_done_there_is_nothing_to_save(save: float, deadline: float | None) -> None:
    assert order_for(end(deadline), CONFIG, save, 0, NOW, unsaved=False) == "end"


@given(seconds, seconds, seconds, st.floats(0, 1000))
def test_more_time_never_leads_to_less(remaining: float, save: float, step: float, more: float) -> None:
    if left(remaining, save, step) == "save_and_end":
        assert left(remaining + more, save, step) == "save_and_end"


@given(seconds, seconds, seconds)
def test_a_save_is_ordered_only_where_it_fits(remaining: float, save: float, step: float) -> None:
    if left(remaining, save, step) == "save_and_end":
        assert remaining >= save + step
        assert remaining >= seconds_to_end(save, step) - 1e-3  # of a Unix time in a float


@given(st.floats(0, 1000), st.floats(0, 1000), st.none() | st.floats(0, 2 * NOW))
def test_a_recommendation_leads_to_what_is_configured(save: float, step: float, deadline: float | None) -> None:
    notice = Notice("rebalance", "rebalance", deadline, "better leave")
    policies: dict[str, OrderKind] = {"ignore": "none", "save": "save", "drain": "save_and_end"}
    for policy, order in policies.items():
        config = NoticesConfig.model_validate({"rebalance": policy})
        assert order_for(notice, config, save, step, NOW, unsaved=True) == order


def test_of_several_orders_the_one_that_ends_soonest_counts() -> None:
    assert strongest(["save", "end", "save_and_end", "none"]) == "end"
    assert strongest(["none", "save_and_end", "save"]) == "save_and_end"
    assert strongest([]) == "none"


@given(st.lists(orders))
def test_in_which_order_notices_come_does_not_matter(several: list[OrderKind]) -> None:
    assert strongest(several) == strongest(reversed(several)) == strongest([*several, strongest(several)])


def test_the_gang_ends_some_time_before_its_machine_does() -> None:
    sign = ending_evidence(end(NOW + 90), 1, 500.0, NOW, worth_waiting=True)
    assert (sign.kind, sign.node, sign.by, sign.at) == ("notice", 1, 1, 500.0)
    assert sign.deadline == 500.0 + 90 - END_SECONDS


def test_however_late_a_notice_comes_the_workers_get_a_moment_to_end() -> None:
    assert ending_evidence(end(0), 1, 500.0, NOW, worth_waiting=True).deadline == 500.0 + END_SECONDS


def test_without_a_deadline_the_workers_end_in_their_own_time() -> None:
    assert ending_evidence(end(None), 1, 500.0, NOW, worth_waiting=True).deadline is None


def test_before_a_step_was_done_nobody_is_waited_for() -> None:
    assert ending_evidence(end(None), 1, 500.0, NOW, worth_waiting=False).deadline == 500.0
