"""What `convoy run` does after each run of a flow, told from how the runs ended."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.job.events.types import FailureDetected
from convoy.launch.restarts.policy import (
    DONE,
    FAILED,
    FRUITLESS_RUNS,
    STOPPED,
    Again,
    Ended,
    How,
    Limits,
    Over,
    decide,
    fruitless,
    idle,
)
from tests.campaign import examples

pytestmark = pytest.mark.campaign

HOWS: tuple[How, ...] = ("finished", "stopped", "drained", "preempted", "waited", "outage", "failed", "refused")
GOES_ON: tuple[How, ...] = ("preempted", "waited", "outage", "failed", "refused")
LIMITS = Limits(pause_seconds=10, longest_pause_seconds=300)


def ended(how: How = "failed", step: int = 0, **facts: Any) -> Ended:
    return Ended(how=how, code=0 if how in ("finished", "stopped") else 1, run="Flow/1", step=step, **facts)


def bug(step: int = 7, reason: str = "ValueError: no", **facts: Any) -> FailureDetected:
    return FailureDetected(
        **{"cause": "exited", "failed_node": 0, "worker": 1, "exit_code": 1, "reason": reason, "step": step, **facts}
    )


def lost(step: int = 7) -> FailureDetected:
    return FailureDetected(cause="node_gone", failed_node=1, step=step)


def test_a_job_that_is_done_is_not_started_again() -> None:
    assert decide([ended("preempted", 3), ended("finished", 20)], LIMITS) == Over(DONE)


@pytest.mark.parametrize("how", ["stopped", "drained"])
def test_a_job_that_was_stopped_or_drained_is_not_started_again(how: How) -> None:
    assert decide([ended(how, 5)], LIMITS) == Over(STOPPED)


def test_any_number_of_preemptions_is_followed_by_another_run() -> None:
    assert all(isinstance(decide([ended("preempted", 5)] * count, LIMITS), Again) for count in (1, 6, 60))


def test_what_is_refused_at_once_is_bad_input() -> None:
    refused = Ended(how="refused", code=2)
    assert decide([refused], LIMITS) == Over(2)


def test_a_later_run_that_is_refused_may_not_be_so_in_a_while() -> None:
    refused = Ended(how="refused", code=2)
    assert isinstance(decide([ended("preempted", 5), refused, refused, refused], LIMITS), Again)


def test_a_failure_that_lasts_is_not_tried_again() -> None:
    assert decide([ended(lasting=True, causes=(bug(),))], LIMITS).code == FAILED  # type: ignore[union-attr]


def test_a_bug_that_comes_three_times_at_the_same_step_stops() -> None:
    runs = [ended(step=7, causes=(bug(),)), ended("preempted", 7), ended(step=7, causes=(bug(),))]
    assert isinstance(decide(runs, LIMITS), Again)
    assert decide([*runs, ended(step=7, causes=(bug(),))], LIMITS) == Over(
        FAILED, "the same failure, 3 times, is not tried again"
    )


def test_restarts_in_place_count_too() -> None:
    assert isinstance(decide([ended(causes=(bug(), bug(), bug()))], LIMITS), Over)


def test_the_same_bug_at_another_step_is_another_try() -> None:
    assert isinstance(decide([ended(step=s, causes=(bug(step=s),)) for s in (7, 8, 9)], LIMITS), Again)


def test_numbers_in_a_message_do_not_make_another_bug() -> None:
    runs = [ended(causes=(bug(reason=f"KeyError: {number}, at 0x{number:x}a"),)) for number in (11, 122, 3)]
    assert isinstance(decide(runs, LIMITS), Over)


def test_lost_machines_are_no_bug() -> None:
    assert isinstance(decide([ended(step=7, causes=(lost(),))] * 4, LIMITS), Again)


def test_a_failure_outside_the_gang_that_comes_three_times_in_a_row_stops() -> None:
    failing = ended(failed_step="prepare", message="no such bucket (request 17)")
    again = ended(failed_step="prepare", message="no such bucket (request 18)")
    assert isinstance(decide([failing, again], LIMITS), Again)
    assert isinstance(decide([failing, ended("outage"), again, failing], LIMITS), Again)
    assert isinstance(decide([failing, again, failing], LIMITS), Over)


def test_many_failures_that_bring_the_job_no_further_stop() -> None:
    runs = [ended(step=100, causes=(lost(),))] * (FRUITLESS_RUNS + 1)
    assert isinstance(decide(runs[:-1], LIMITS), Again)  # the first one brought it to step 100
    assert isinstance(decide(runs, LIMITS), Over)


def test_preemptions_between_failures_do_not_hide_that_nothing_comes_of_them() -> None:
    runs = [ended("preempted", 100), *[ended(step=100, causes=(lost(),)), ended("preempted", 100)] * FRUITLESS_RUNS]
    assert fruitless(runs) == FRUITLESS_RUNS
    assert fruitless([*runs, ended("preempted", 101)]) == 0


def test_it_ends_after_the_most_runs() -> None:
    once = Limits(most_runs=2)
    assert isinstance(decide([ended("preempted", 1)], once), Again)
    assert decide([ended("preempted", 1)] * 2, once) == Over(FAILED, "the job has had 2 runs")


def test_the_pause_doubles_while_the_job_comes_no_further_and_then_begins_anew() -> None:
    steps = [5, 5, 5, 5, 6, 6]
    pauses = [decide([ended("preempted", s) for s in steps[: i + 1]], LIMITS) for i in range(len(steps))]
    assert pauses == [Again(10), Again(20), Again(40), Again(80), Again(10), Again(20)]


def test_the_pause_has_an_end_and_chance_spreads_it() -> None:
    runs = [ended("preempted", 5)] * 2000
    assert decide(runs, LIMITS) == Again(300)
    assert (decide(runs, LIMITS, 0.0), decide(runs, LIMITS, 1.0)) == (Again(225), Again(375))


any_ended = st.builds(
    ended,
    st.sampled_from(GOES_ON),
    st.integers(0, 30),
    causes=st.sampled_from([(), (lost(),), (bug(),), (bug(8), bug(9))]),
    failed_step=st.sampled_from(["", "train", "end"]),
)


@examples(25)
@given(st.lists(any_ended, min_size=1, max_size=30), st.floats(0, 1))
def test_a_pause_is_never_shorter_or_longer_than_it_may_be(history: list[Ended], chance: float) -> None:
    decision = decide(history, LIMITS, chance)
    if isinstance(decision, Again):
        assert 7.5 <= decision.pause_seconds <= 375
        assert decision.pause_seconds == pytest.approx(min(10 * 2 ** idle(history), 300) * (0.75 + chance / 2))
    else:
        assert decision.why or history[-1].how == "refused"


@given(st.lists(any_ended, min_size=1, max_size=30), st.sampled_from(HOWS))
def test_what_has_ended_for_good_does_not_depend_on_what_was_before(history: list[Ended], how: How) -> None:
    newest = ended(how, 3)
    if how in ("finished", "stopped", "drained"):
        assert decide([*history, newest], LIMITS) == decide([newest], LIMITS)


@given(st.lists(any_ended, max_size=30))
def test_a_preemption_that_brought_the_job_further_is_always_followed_by_another_run(history: list[Ended]) -> None:
    decision = decide([*history, ended("preempted", 31)], LIMITS)
    assert decision == Again(10)
