"""What `convoy run` does after each run of a flow, told from how the runs ended."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.job.events.registry import FailureDetected
from convoy.launch.reruns.policy import (
    DONE,
    FAILED,
    FRUITLESS_RUNS,
    STOPPED,
    EndedRun,
    How,
    NoRerun,
    Rerun,
    RerunLimits,
    decide_rerun,
    failures_without_progress,
    runs_without_progress,
)
from tests.campaign import examples

pytestmark = pytest.mark.campaign

HOWS: tuple[How, ...] = ("finished", "stopped", "drained", "preempted", "waited", "outage", "failed", "refused")
GOES_ON: tuple[How, ...] = ("preempted", "waited", "outage", "failed", "refused")
LIMITS = RerunLimits(pause_seconds=10, longest_pause_seconds=300)


def ended(how: How = "failed", step: int = 0, **facts: Any) -> EndedRun:
    return EndedRun(how=how, code=0 if how in ("finished", "stopped") else 1, run="Flow/1", step=step, **facts)


def bug(step: int = 7, reason: str = "ValueError: no", **facts: Any) -> FailureDetected:
    return FailureDetected(
        **{"cause": "exited", "failed_node": 0, "worker": 1, "exit_code": 1, "reason": reason, "step": step, **facts}
    )


def lost(step: int = 7) -> FailureDetected:
    return FailureDetected(cause="node_gone", failed_node=1, step=step)


REFUSED = EndedRun(how="refused", code=2)
BUG, LOST, PREEMPTED = ended(step=7, causes=(bug(),)), ended(step=100, causes=(lost(),)), ended("preempted", 5)
OUTSIDE, OUTSIDE_TOO = (ended(failed_step="prepare", message=f"no such bucket (request {n})") for n in (17, 18))
NO_FURTHER = NoRerun(FAILED, f"{FRUITLESS_RUNS} failed runs in a row brought the job no further")
SAME = NoRerun(FAILED, "the same failure, 3 times, is not tried again")


@pytest.mark.parametrize(
    ("history", "over"),
    [
        ([ended("preempted", 3), ended("finished", 20)], NoRerun(DONE)),
        ([ended("stopped", 5)], NoRerun(STOPPED)),
        ([ended("drained", 5)], NoRerun(STOPPED)),
        ([PREEMPTED] * 60, None),
        ([REFUSED], NoRerun(2)),
        ([PREEMPTED, REFUSED, REFUSED, REFUSED], None),  # a later run may not be refused in a while
        ([ended(lasting=True, causes=(bug(),))], NoRerun(FAILED, "another run would fail in the same way")),
        # A bug that comes three times at the same step, restarts in place included, whatever its numbers are.
        ([BUG, ended("preempted", 7), BUG], None),
        ([BUG, ended("preempted", 7), BUG, BUG], SAME),
        ([ended(causes=(bug(), bug(), bug()))], SAME),
        ([ended(causes=(bug(reason=f"KeyError: {n}, at 0x{n:x}a"),)) for n in (11, 122, 3)], SAME),
        ([ended(step=step, causes=(bug(step=step),)) for step in (7, 8, 9)], None),
        # Lost machines are no bug, but many in a row that bring the job no further; the first one brought it to 100.
        ([LOST] * 4, None),
        ([LOST] * FRUITLESS_RUNS, None),
        (
            [LOST] * (FRUITLESS_RUNS + 1),
            NO_FURTHER,
        ),
        # What fails outside the gang counts while it comes in a row.
        ([OUTSIDE, OUTSIDE_TOO], None),
        ([OUTSIDE, ended("outage"), OUTSIDE_TOO, OUTSIDE], None),
        ([OUTSIDE, OUTSIDE_TOO, OUTSIDE], SAME),
    ],
)
def test_what_follows_from_how_the_runs_ended(history: list[EndedRun], over: NoRerun | None) -> None:
    decision = decide_rerun(history, LIMITS)
    assert isinstance(decision, Rerun) if over is None else decision == over


def test_it_ends_after_the_most_runs() -> None:
    once = RerunLimits(most_runs=2)
    assert isinstance(decide_rerun([ended("preempted", 1)], once), Rerun)
    assert decide_rerun([ended("preempted", 1)] * 2, once) == NoRerun(FAILED, "the job has had 2 runs")


def test_preemptions_between_failures_do_not_hide_that_nothing_comes_of_them() -> None:
    runs = [ended("preempted", 100), *[ended(step=100, causes=(lost(),)), ended("preempted", 100)] * FRUITLESS_RUNS]
    assert failures_without_progress(runs) == FRUITLESS_RUNS
    assert failures_without_progress([*runs, ended("preempted", 101)]) == 0


def test_the_pause_doubles_while_the_job_comes_no_further_and_then_begins_anew() -> None:
    steps = [5, 5, 5, 5, 6, 6]
    pauses = [decide_rerun([ended("preempted", s) for s in steps[: i + 1]], LIMITS) for i in range(len(steps))]
    assert pauses == [Rerun(10), Rerun(20), Rerun(40), Rerun(80), Rerun(10), Rerun(20)]


def test_the_pause_has_an_end_and_chance_spreads_it() -> None:
    runs = [ended("preempted", 5)] * 2000
    assert decide_rerun(runs, LIMITS) == Rerun(300)
    assert (decide_rerun(runs, LIMITS, 0.0), decide_rerun(runs, LIMITS, 1.0)) == (Rerun(225), Rerun(375))


any_ended = st.builds(
    ended,
    st.sampled_from(GOES_ON),
    st.integers(0, 30),
    causes=st.sampled_from([(), (lost(),), (bug(),), (bug(8), bug(9))]),
    failed_step=st.sampled_from(["", "train", "end"]),
)


@examples(25)
@given(st.lists(any_ended, min_size=1, max_size=30), st.floats(0, 1))
def test_a_pause_is_never_shorter_or_longer_than_it_may_be(history: list[EndedRun], chance: float) -> None:
    decision = decide_rerun(history, LIMITS, chance)
    if isinstance(decision, Rerun):
        assert 7.5 <= decision.pause_seconds <= 375
        assert decision.pause_seconds == pytest.approx(
            min(10 * 2 ** runs_without_progress(history), 300) * (0.75 + chance / 2)
        )
    else:
        assert decision.why or history[-1].how == "refused"


@given(st.lists(any_ended, min_size=1, max_size=30), st.sampled_from(HOWS))
def test_what_has_ended_for_good_does_not_depend_on_what_was_before(history: list[EndedRun], how: How) -> None:
    newest = ended(how, 3)
    if how in ("finished", "stopped", "drained"):
        assert decide_rerun([*history, newest], LIMITS) == decide_rerun([newest], LIMITS)


@given(st.lists(any_ended, max_size=30))
def test_a_preemption_that_brought_the_job_further_is_always_followed_by_another_run(history: list[EndedRun]) -> None:
    decision = decide_rerun([*history, ended("preempted", 31)], LIMITS)
    assert decision == Rerun(10)
