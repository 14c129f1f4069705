"""Figures of rails from the samples of their cases."""

import random

import pytest

from convoy.benchmark.results.case import Case
from convoy.benchmark.results.rails import GROUP, RailsReport, rail_cases, rails_report
from convoy.network.rails.plan import RailTask, RailTimes, rail_tasks
from tests.benchmark.cases import a_case

RATE = 25e6
LATENCY = 2e-4
MESSAGE = 5e-5
"""Seconds of one more message."""


def seconds_of(task: RailTask, rails: int) -> float:
    """On rails of 25 MB/s each, on which the host's time for messages is not hidden."""
    shared = rails if task.mode == "split" or (task.mode == "round-robin" and task.buffers > 1) else 1
    messages = task.buffers * (rails if task.mode == "split" else 1)
    return LATENCY + (messages - 1) * MESSAGE + task.buffers * task.size / shared / RATE


def cases(rounds: int = 8, wrong: int = 0) -> list[Case]:
    draw = random.Random(0)
    times = {
        task: RailTimes(tuple(seconds_of(task, 2) * draw.uniform(0.995, 1.005) for _ in range(rounds)), wrong)
        for task in rail_tasks(2**24)
    }
    return [
        a_case(name=mode, suite="network", group=GROUP, blocks=(), samples=result.samples, values=result.values)
        for mode, result in rail_cases(2, times).items()
    ]


def report(wrong: int = 0) -> RailsReport:
    found = rails_report(cases(wrong=wrong))
    assert found is not None
    return found


def test_a_split_gains_with_large_buffers_and_round_robin_with_many() -> None:
    found = report()
    one, many = found.one_buffer[-1], found.many_buffers[-1]
    assert (one.size, many.size, many.buffers) == (2**24, 2**24, 4)
    assert one.split_gain.estimate == pytest.approx(2, rel=0.01)
    assert one.round_robin_gain.estimate == pytest.approx(1, rel=0.01)
    assert many.round_robin_gain.estimate == pytest.approx(2, rel=0.01)
    assert found.one_buffer[0].split_gain.high < 1
    assert found.rails == 2
    assert [row.size for row in found.one_buffer] == sorted(row.size for row in found.one_buffer)


def test_the_split_and_its_crossover_follow_from_one_rail() -> None:
    found = report()
    assert found.message_seconds == pytest.approx(MESSAGE, rel=0.1)
    expected = 2 * MESSAGE * RATE  # S / rate - S / 2 / rate is the cost of one message
    assert found.predicted_crossover == pytest.approx(expected, rel=0.3)
    assert found.crossover == pytest.approx(expected, rel=0.3)
    for row in found.one_buffer[2:]:
        assert row.predicted_split == pytest.approx(row.split.estimate, rel=0.05)
    assert all(row.predicted_split is None for row in found.many_buffers)


def test_wrong_bytes_are_added_up() -> None:
    assert report().wrong == 0
    assert report(wrong=1).wrong == len(rail_tasks(2**24))


def test_nothing_is_said_of_few_rounds_or_missing_cases() -> None:
    assert rails_report(cases(rounds=5)) is None
    assert rails_report(cases()[:2]) is None
    assert rails_report([a_case()]) is None
