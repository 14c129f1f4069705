"""FailureDetector over random schedules: late beats, losses, pauses of either side, clocks that jump."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.gang.network.failure_detector import (
    BEAT_SECONDS,
    MAX_PHI,
    MAX_SECONDS,
    MIN_SECONDS,
    WINDOW,
    AwakeClock,
    FailureDetector,
)
from tests.campaign import examples

pytestmark = pytest.mark.campaign

intervals = st.lists(st.floats(0.001, 3.0), max_size=300)
seeds = st.integers(0, 2**32)


def after(history: list[float]) -> tuple[FailureDetector, float]:
    """A peer that was heard at these intervals, and when it was heard last."""
    now = 0.0
    suspicion = FailureDetector(now)
    for interval in history:
        now += interval
        suspicion.record_heartbeat(now)
    return suspicion, now


def suspected_after(suspicion: FailureDetector, last: float) -> float:
    """Seconds of silence until it is suspected, to 10 ms."""
    return next(n / 100 for n in range(100_000) if suspicion.is_suspect(last + n / 100))


@pytest.mark.parametrize("beats", [0, 500])
def test_a_regular_peer_or_one_never_heard_is_suspected_after_one_and_a_half_seconds(beats: int) -> None:
    assert suspected_after(*after([BEAT_SECONDS] * beats)) == pytest.approx(1.61, abs=0.011)


@examples(300)
@given(intervals)
def test_nobody_is_suspected_before_six_beats_are_missing_and_everybody_in_the_end(history: list[float]) -> None:
    silence = suspected_after(*after(history))
    assert MIN_SECONDS < silence <= MAX_SECONDS + 0.01


@examples(300)
@given(intervals, st.lists(st.floats(0.0, 20.0), min_size=2, max_size=20).map(sorted))
def test_the_level_only_grows_with_silence_and_is_a_finite_number(history: list[float], times: list[float]) -> None:
    suspicion, last = after(history)
    levels = [suspicion.phi(last + time) for time in times]
    assert levels == sorted(levels)
    assert all(0.0 <= level <= MAX_PHI for level in levels)
    suspects = [suspicion.is_suspect(last + time) for time in times]
    assert suspects == sorted(suspects)


@examples(100)
@given(seeds, st.floats(0.0, 0.9))
def test_beats_late_by_less_than_a_second_raise_no_suspicion(seed: int, most_late: float) -> None:
    """Each beat is sent in time and delayed by its own amount; they come in order."""
    rng = random.Random(seed)
    arrivals, newest = [], 0.0
    for beat in range(1, 600):
        newest = max(newest, beat * BEAT_SECONDS + rng.uniform(0.0, most_late))
        arrivals.append(newest)
    suspicion = FailureDetector(0.0)
    for arrival in arrivals:
        assert not suspicion.is_suspect(arrival), arrival
        suspicion.record_heartbeat(arrival)


@examples(200)
@given(seeds)
def test_a_gap_of_a_second_now_and_then_raises_no_suspicion(seed: int) -> None:
    """A host that compiles, a disk that is flushed, a cable that is out: beats wait and come all at once."""
    rng = random.Random(seed)
    suspicion, now, away_until = FailureDetector(0.0), 0.0, 0.0
    for _ in range(3000):
        now += BEAT_SECONDS
        if now >= away_until + 5.0 and rng.random() < 0.02:
            away_until = now + rng.uniform(0.1, 1.0)
        heard_at = max(now, away_until) + rng.uniform(0.0, 0.2)
        assert not suspicion.is_suspect(heard_at), now
        suspicion.record_heartbeat(heard_at)


def test_an_irregular_peer_is_given_more_time_and_a_regular_one_again_less() -> None:
    rng = random.Random(1)
    irregular = [rng.uniform(0.05, 1.2) for _ in range(200)]
    longer = suspected_after(*after(irregular))
    assert longer > 2.2
    assert suspected_after(*after(irregular + [BEAT_SECONDS] * WINDOW)) == pytest.approx(1.61, abs=0.011)


def test_a_silence_that_was_suspected_does_not_make_the_next_one_look_normal() -> None:
    assert suspected_after(*after([BEAT_SECONDS] * 50 + [4.0] * 10)) == pytest.approx(1.61, abs=0.011)


def test_many_beats_at_once_count_as_one() -> None:
    once, last = after([BEAT_SECONDS] * 20)
    for _ in range(10):
        once.record_heartbeat(last)
    assert once.phi(last + 1.0) == after([BEAT_SECONDS] * 20)[0].phi(last + 1.0)


@examples(200)
@given(st.lists(st.floats(-100.0, 100.0), max_size=100))
def test_the_awake_clock_never_goes_back_nor_faster_than_time(steps: list[float]) -> None:
    now, clock, before = 1000.0, AwakeClock(1000.0, longest_seconds=0.3), 0.0
    for step in steps:
        now += step
        awake = clock.tick(now)
        assert 0.0 <= awake - before <= max(0.0, min(step, 0.3)) + 1e-9
        before = awake


def loop_times(rng: random.Random, pauses: bool) -> Iterator[float]:
    """When our loop comes round, for about a minute of being awake: each 0.1 s, and sometimes late by far."""
    now = 0.0
    for _ in range(600):
        now += 0.1 + (rng.uniform(0.5, 60.0) if pauses and rng.random() < 0.02 else rng.uniform(0.0, 0.05))
        yield now


@examples(200)
@given(seeds)
def test_our_own_pauses_make_nobody_suspect_who_sleeps_with_us_or_goes_on(seed: int) -> None:
    """The peer beats as long as its host is awake, which sleeps with ours or does not; its clock may also jump."""
    rng = random.Random(seed)
    sleeps_too = rng.random() < 0.5
    clock, suspicion = AwakeClock(0.0), FailureDetector(0.0)
    before, next_beat = 0.0, BEAT_SECONDS
    for now in loop_times(rng, pauses=True):
        awake = clock.tick(now)
        if sleeps_too and now - before > 0.3:
            next_beat += now - before  # it woke up with us, and goes on where it was
        if next_beat <= now:
            suspicion.record_heartbeat(awake)
            next_beat = now + rng.uniform(0.0, BEAT_SECONDS)
        assert not suspicion.is_suspect(awake), now
        before = now


@examples(200)
@given(seeds)
def test_a_dead_peer_is_suspected_within_two_seconds_of_being_awake(seed: int) -> None:
    rng = random.Random(seed)
    clock, suspicion = AwakeClock(0.0), FailureDetector(0.0)
    dies = rng.uniform(1.0, 30.0)
    for now in loop_times(rng, pauses=False):
        awake = clock.tick(now)
        if now <= dies:
            suspicion.record_heartbeat(awake)
        elif suspicion.is_suspect(awake):
            assert now - dies < 2.0
            return
    raise AssertionError("never suspected")
