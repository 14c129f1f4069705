"""Who hangs: thresholds from the job's own times, and the one that the others wait for."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.gang.diagnosis.hang_detector import (
    LATE_SECONDS,
    LIMITS,
    MIN_STEPS,
    RECENT_SECONDS,
    SLACK,
    HangDetector,
    RecentTimes,
    find_hang,
    rank_furthest_behind,
)
from convoy.gang.workers.board import PHASES, Mark, Phase
from tests.campaign import examples

pytestmark = pytest.mark.campaign

LOOK = 0.1
"""Seconds between two looks at the boards."""


def hung(rank: int, mark: Mark, now: float, detector: HangDetector) -> str | None:
    """What `find_hang` says of a rank alone."""
    hangs = find_hang({rank: mark}, now, detector)
    return None if hangs is None else hangs[1]


def a_mark(phase: Phase = "step", step: int = 40, count: int = 1, at: float = 0.0, **more: float) -> Mark:
    return Mark(phase=phase, step=step, count=count, at=at, **more)


def after_steps(seconds: Sequence[float], *, compiled: bool = False) -> tuple[HangDetector, Mark, float]:
    """A patience that has seen rank 0 take these steps after its first one, the mark it stands at, and the moment."""
    patience, now = HangDetector(compiled=compiled), 100.0
    patience.learn_from({0: a_mark("step", 1, at=now)}, now)
    mark = a_mark("step", 1, at=now)
    for step, took in enumerate(seconds, 2):
        while now + LOOK < mark.at + took:
            now += LOOK
            patience.learn_from({0: mark}, now)
        now = mark.at + took
        mark = a_mark("step", step, at=now, step_seconds=took)
        patience.learn_from({0: mark}, now)
    return patience, mark, now


# Thresholds


@given(st.lists(st.floats(0, 1e4), max_size=3000))
@examples(50)
def test_the_percentile_is_that_of_the_newest_thousand(values: list[float]) -> None:
    times = RecentTimes()
    for value in values:
        times.add(value)

    newest = sorted(values[-1000:])
    assert len(times) == len(newest)
    assert times.p99() == (newest[math.ceil(0.99 * len(newest)) - 1] if newest else 0.0)


@pytest.mark.parametrize("phase", PHASES)
def test_before_there_are_times_the_limit_is_the_stated_one(phase: Phase) -> None:
    assert HangDetector().limit_seconds(0, phase) == LIMITS[phase].first
    assert HangDetector(compiled=True).limit_seconds(0, phase) == (LIMITS[phase].compiled or LIMITS[phase].first)


@given(st.lists(st.floats(0.01, 30), min_size=MIN_STEPS, max_size=40))
@examples(100)
def test_a_step_may_take_a_multiple_of_what_nearly_all_took_and_not_less_than_the_floor(seconds: list[float]) -> None:
    patience, mark, now = after_steps(seconds)

    limit = max(LIMITS["step"].floor, SLACK * max(seconds))

    assert patience.limit_seconds(0, "step") == pytest.approx(limit)
    assert hung(0, mark, now + limit - 0.01, patience) is None
    assert hung(0, mark, now + limit + 0.01, patience) is not None


def test_a_hang_is_told_in_words() -> None:
    patience, mark, now = after_steps([0.2] * 39)

    told = hung(2, mark, now + 4.1, patience)
    assert told == "rank 2 has shown no progress in step 41 for 4.1 s; the limit is 2.7 s"


def test_few_steps_tell_nothing() -> None:
    patience, mark, now = after_steps([0.2] * (MIN_STEPS - 1))

    assert patience.limit_seconds(0, "step") == LIMITS["step"].first
    assert hung(0, mark, now + LIMITS["step"].first - 1, patience) is None


def test_a_slow_first_step_makes_patient_with_the_next_ones() -> None:
    patience = HangDetector()
    for second in range(40):
        patience.learn_from({0: a_mark("first_step", 0, at=0.0)}, float(second))
    patience.learn_from({0: a_mark("step", 1, at=40.0, step_seconds=40.0)}, 40.0)

    assert patience.limit_seconds(0, "step") == SLACK * 40.0


def test_what_is_short_within_a_first_step_tells_nothing_of_its_long_part() -> None:
    patience = HangDetector(compiled=True)
    patience.learn_from({0: a_mark("first_step", 0, at=0.0)}, 0.0)
    patience.learn_from({0: a_mark("evaluate", 0, at=0.1)}, 0.1)  # of batches that were quickly there
    patience.learn_from({0: a_mark("first_step", 0, at=0.2)}, 0.2)
    assert patience.limit_seconds(0, "first_step") == LIMITS["first_step"].compiled, "nothing was compiled yet"
    patience.learn_from({0: a_mark("step", 1, at=90.2, step_seconds=90.0)}, 0.3)
    assert patience.limit_seconds(0, "first_step") == SLACK * 90.0


def test_steps_of_a_compiled_model_are_judged_anew_in_each_generation_and_others_are_not() -> None:
    compiled, _, now = after_steps([0.2] * 20, compiled=True)
    plain, _, _ = after_steps([0.2] * 20)
    assert compiled.limit_seconds(0, "step") == plain.limit_seconds(0, "step") == LIMITS["step"].floor

    for patience in (compiled, plain):
        patience.begin_generation()
        patience.learn_from({0: a_mark("step", 10, at=now)}, now)

    limits = [detector.limit_seconds(0, "step") for detector in (compiled, plain)]
    assert limits == [LIMITS["step"].compiled, LIMITS["step"].floor]


def test_the_first_evaluation_of_a_process_may_compile() -> None:
    patience = HangDetector(compiled=True)
    seconds = iter(itertools.count(0.0, 0.5))
    for generation in (1, 2):
        patience.begin_generation()
        for phase in ("evaluate", "evaluate", "step"):
            now = next(seconds)
            assert patience.limit_seconds(0, "evaluate") == LIMITS["evaluate"].compiled, generation
            patience.learn_from({0: a_mark(phase, 0, at=now)}, now)
        assert patience.limit_seconds(0, "evaluate") == LIMITS["evaluate"].floor


def test_a_script_that_tells_nothing_never_hangs() -> None:
    patience, mark = HangDetector(script_seconds=5.0), a_mark("script", 0, at=0.0)
    for moment in (0.0, 1e3, 1e6):
        patience.learn_from({0: mark}, moment)
    assert hung(0, mark, 1e9, patience) is None
    # Nor a gang one of whose ranks tells nothing.
    assert find_hang({0: mark, 1: a_mark("step", 7, at=0.0)}, 1e9, patience) is None


def test_a_script_may_take_its_own_limit_from_step_to_step_and_a_multiple_of_what_nearly_all_took() -> None:
    patience, now = HangDetector(script_seconds=5.0), 0.0
    for step in range(1, 40):
        patience.learn_from({0: a_mark("step", step, at=now, step_seconds=0.01)}, now)
        now += 0.01
    assert patience.limit_seconds(0, "step") == 5.0
    assert LIMITS["step"].floor < 5.0 < LIMITS["step"].first
    for step in range(40, 80):
        patience.learn_from({0: a_mark("step", step, at=now, step_seconds=2.0)}, now)
        now += 0.9
    assert patience.limit_seconds(0, "step") == SLACK * 2.0


def test_what_a_phase_took_in_an_earlier_generation_counts() -> None:
    patience = HangDetector()
    for second in range(200):
        patience.learn_from({0: a_mark("build", 0, at=0.0)}, float(second))
    patience.learn_from({0: a_mark("restore", 0, at=200.0)}, 200.0)

    patience.begin_generation()

    assert patience.limit_seconds(5, "build") == SLACK * 200.0
    assert patience.limit_seconds(5, "restore") == LIMITS["restore"].first


# Pauses of our own


@given(st.floats(LATE_SECONDS + LOOK, 1e5), st.floats(0.0, 1.0))
@examples(100)
def test_while_this_process_stands_still_nobody_hangs(pause: float, part: float) -> None:
    """Whenever within the pause the worker passed its last point."""
    patience, mark, now = after_steps([0.2] * 20)
    woke = now + pause
    mark = replace(mark, step=mark.step + 1, at=now + part * pause, step_seconds=part * pause)
    patience.learn_from({0: mark}, woke)

    assert patience.idle_seconds(mark, woke) <= LATE_SECONDS
    assert hung(0, mark, woke, patience) is None


def test_a_hang_after_a_pause_is_seen_as_soon_as_any() -> None:
    patience, mark, now = after_steps([0.2] * 20)
    woke = now + 60.0
    patience.learn_from({0: mark}, woke)
    looks = [woke + LOOK * i for i in range(1, 40)]
    seen = []
    for moment in looks:
        patience.learn_from({0: mark}, moment)
        seen.append(hung(0, mark, moment, patience) is not None)

    assert LIMITS["step"].floor - LATE_SECONDS - 0.2 < looks[seen.index(True)] - woke < LIMITS["step"].floor + 0.1


def test_times_over_a_pause_are_not_learned_from() -> None:
    patience = HangDetector()
    patience.learn_from({0: a_mark("evaluate", 0, at=0.0)}, 0.0)
    patience.learn_from({0: a_mark("evaluate", 0, count=2, at=0.1)}, 0.1)
    patience.learn_from({0: a_mark("save", 0, at=99.0)}, 99.0)

    assert patience.limit_seconds(0, "evaluate") == LIMITS["evaluate"].floor


# Histories of whole workers


@dataclass(frozen=True)
class Stay:
    phase: Phase
    seconds: float


@st.composite
def histories(draw: st.DrawFn) -> list[Stay]:
    """What a healthy worker does: its steps vary by up to four times, evaluations and saves take what they take."""
    typical = draw(st.floats(0.02, 4))
    stays = [Stay("first_step", typical * draw(st.floats(1, 20)))]
    for _ in range(draw(st.integers(1, 30))):
        stays.append(Stay("step", typical * draw(st.floats(0.5, 2))))
        if draw(st.booleans()) and draw(st.booleans()):
            stays.append(Stay(draw(st.sampled_from(["evaluate", "save"])), draw(st.floats(0.001, 20))))
    return stays


@given(histories(), st.booleans(), st.floats(0.1, 0.9))
@examples(60)
def test_a_healthy_worker_never_hangs(stays: list[Stay], compiled: bool, look: float) -> None:
    patience, now, step = HangDetector(compiled=compiled), 10.0, 0
    for stay in stays:
        mark = a_mark(stay.phase, step, at=now, step_seconds=0.0)
        end = now + stay.seconds
        while now < end:
            patience.learn_from({0: mark}, now)
            assert find_hang({0: mark}, now, patience) is None
            now = min(end, now + look)
        if stay.phase in ("step", "first_step"):
            step += 1
            mark = replace(mark, step=step, at=now, step_seconds=stay.seconds)
            patience.learn_from({0: mark}, now)
            assert find_hang({0: mark}, now, patience) is None


# Who hangs first


def waits(mark: Mark, now: float) -> Mark:
    """A rank that waits in a collective, as its own thread tells."""
    return replace(mark, beat_at=now - 0.2, waiting_at=now - 0.2)


@pytest.mark.parametrize(("behind", "ahead"), itertools.pairwise(["start", "connect", "build", "restore", "step"]))
def test_a_rank_in_an_earlier_stage_is_behind(behind: Phase, ahead: Phase) -> None:
    marks = {0: a_mark(ahead, 0, count=1, at=0.0), 1: a_mark(behind, 0, count=2, at=9.0)}

    assert rank_furthest_behind(marks, 10.0) == 1


WAITS, LATER_WAITS = waits(a_mark(at=4.0), 10.0), waits(a_mark(at=4.5), 10.0)
RECENTLY = 10.0 - 0.1
LONG_AGO = 10.0 - RECENT_SECONDS - 1.0


@pytest.mark.parametrize(
    ("others", "first"),
    [
        ((a_mark(step=41, at=1.0), a_mark(step=41, at=0.0)), a_mark(step=40, at=5.0)),
        ((a_mark(count=4, at=0.0), a_mark(count=4, at=0.0)), a_mark(count=3, at=3.0)),
        # At one point: Python does not run in it, though it waited once, and was let go on.
        ((WAITS, LATER_WAITS), a_mark(at=5.0, beat_at=LONG_AGO, waiting_at=LONG_AGO)),
        ((WAITS, LATER_WAITS), a_mark(at=5.0, beat_at=RECENTLY, waiting_at=4.9)),  # it does not wait
        ((a_mark(at=5.0), a_mark(at=4.5)), a_mark(at=4.0)),  # it has been there longest
    ],
    ids=["fewer steps", "fewer points", "Python does not run", "does not wait", "longest"],
)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_others_wait_for_the_rank_that_is_furthest_behind(
    others: tuple[Mark, Mark], first: Mark, rank: int
) -> None:
    marks = list(others)
    marks.insert(rank, first)
    assert rank_furthest_behind(dict(enumerate(marks)), 10.0) == rank


def test_of_ranks_that_came_to_one_point_at_one_time_it_is_the_lowest() -> None:
    assert rank_furthest_behind({2: a_mark(at=5.0), 1: a_mark(at=5.0)}, 10.0) == 1


def test_those_who_wait_for_a_rank_that_saves_do_not_hang() -> None:
    patience, _, now = after_steps([0.2] * 20)
    saves, waiting = a_mark("save", 40, count=1, at=now), a_mark("step", 40, count=3, at=now)
    later = now + 30.0

    assert hung(1, waiting, later, patience) is not None
    assert find_hang({0: saves, 1: waiting}, later, patience) is None


def test_those_who_wait_for_a_rank_that_failed_and_is_leaving_do_not_hang() -> None:
    patience, _, now = after_steps([0.2] * 20)
    fails, waiting = a_mark("leave", 40, count=3, at=now), a_mark("step", 40, count=2, at=now)

    assert find_hang({0: fails, 1: waiting}, now + 15.0, patience) is None
    first = find_hang({0: fails, 1: waiting}, now + 61.0, patience)
    assert first == (0, "rank 0 has shown no progress in closing its log after a failure for 61.0 s; the limit is 60 s")


def test_who_was_waited_for_and_has_gone_on_leaves_the_others_time_to_do_so() -> None:
    patience, _, now = after_steps([0.2] * 20)
    waiting = a_mark("step", 40, count=3, at=now)
    saved = a_mark("step", 40, count=4, at=now + 29.9)

    assert hung(1, waiting, now + 30.0, patience) is not None
    assert find_hang({0: saved, 1: waiting}, now + 30.0, patience) is None
    still = find_hang({0: saved, 1: waiting}, now + 33.0, patience)
    assert still is not None
    assert still[0] == 1


def test_a_gang_whose_ranks_have_all_ended_does_not_hang() -> None:
    assert find_hang({}, 10.0, HangDetector()) is None


@st.composite
def gangs(draw: st.DrawFn) -> tuple[list[tuple[Phase, int, int]], list[int], int]:
    """Points that all ranks pass in this order, how far each rank is, and the one that hangs, which none has passed."""
    points: list[tuple[Phase, int, int]] = [("start", 0, 0), ("connect", 0, 1), ("build", 0, 2)]
    step, count = 0, 0
    for phase in draw(st.lists(st.sampled_from(["step", "evaluate", "save", "done"]), max_size=30)):
        step, count = (step + 1, 1) if phase == "done" else (step, count + 1)
        points.append(("step" if phase == "done" else phase, step, count))
    points.append(("finish", step, count + 1))
    hangs = draw(st.integers(0, 3))
    furthest = draw(st.integers(0, len(points) - 1))
    stand = [draw(st.integers(furthest, len(points) - 1)) for _ in range(4)]
    stand[hangs] = furthest
    return points, stand, hangs


@given(gangs(), st.permutations(range(4)))
@examples(300)
def test_the_one_that_none_has_passed_is_found_whoever_stands_where(
    gang: tuple[list[tuple[Phase, int, int]], list[int], int], order: list[int]
) -> None:
    points, stand, hangs = gang
    now = 100.0
    marks = {rank: waits(a_mark(*points[stand[rank]], at=now - 10), now) for rank in order}
    marks[hangs] = a_mark(*points[stand[hangs]], at=now - 10)

    assert rank_furthest_behind(marks, now) == hangs


def test_evaluations_and_saves_do_not_make_steps_seem_long() -> None:
    patience, now, step = HangDetector(), 0.0, 0
    for i in range(60):
        phase: Phase = "evaluate" if i % 3 == 2 else "step"
        mark = a_mark(phase, step, at=now)
        took = 20.0 if phase == "evaluate" else 0.1
        end = now + took
        while now < end:
            patience.learn_from({0: mark}, now)
            now = min(end, now + LOOK)
        if phase == "step":
            step += 1
            patience.learn_from({0: a_mark("step", step, count=1, at=now, step_seconds=took)}, now)

    assert patience.limit_seconds(0, "step") == LIMITS["step"].floor
    assert patience.limit_seconds(0, "evaluate") == pytest.approx(SLACK * 20.0, rel=0.02)
