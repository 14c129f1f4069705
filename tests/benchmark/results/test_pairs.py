"""Figures of pairs from the samples of their cases."""

import random
from collections.abc import Mapping

import pytest

from convoy.benchmark.results.case import Case
from convoy.benchmark.results.pairs import GROUP, PairsReport, fit_pair, pair_cases, pairs_report
from convoy.network.pairs.plan import PairTask, TaskTimes, pair_tasks
from tests.benchmark.cases import a_case

RATE = 50e6
LATENCY = 1e-4
BURST = 2**15
"""Bytes that a token bucket lets pass at once."""


def seconds_of(task: PairTask, share: float) -> float:
    """Of messages on links of 50 MB/s in each direction, with a token bucket."""
    in_one_direction = task.size * task.messages
    return LATENCY + max(0.0, in_one_direction - BURST) / (RATE * share)


def cases(
    hosts: tuple[str, ...],
    shares: Mapping[tuple[int, int], float] | None = None,
    wrong: Mapping[str, int] | None = None,
) -> list[Case]:
    draw = random.Random(0)
    tasks = pair_tasks(hosts, 2**20, RATE)
    times = {
        task: TaskTimes(
            tuple(
                seconds_of(task, min((shares or {}).get(pair, 1.0) for pair in task.pairs)) * draw.uniform(0.99, 1.01)
                for _ in range(8)
            ),
            (wrong or {}).get(task.link, 0),
        )
        for task in tasks
    }
    return [
        a_case(name=kind, suite="network", group=GROUP, blocks=(), samples=result.samples, values=result.values)
        for kind, result in pair_cases(times, hosts).items()
    ]


def report(*arguments: object) -> PairsReport:
    found = pairs_report(cases(*arguments))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_latency_and_rates_of_a_pair_are_those_of_its_link() -> None:
    (pair,) = report(("a", "b")).pairs
    assert (pair.first, pair.second, pair.hosts, pair.within) == (0, 1, (0, 1), False)
    assert pair.latency is not None
    assert pair.latency.estimate == pytest.approx(LATENCY, rel=0.01)
    assert pair.link is not None
    assert pair.link.beta.estimate == pytest.approx(RATE, rel=0.01)  # whatever the burst
    for rate, times in ((pair.forth, 1), (pair.back, 1), (pair.both, 2)):
        assert rate is not None
        assert rate.estimate == pytest.approx(times * RATE, rel=0.01)
    assert pair.messages_forth is not None
    assert pair.messages_forth.estimate == pytest.approx(64 / LATENCY, rel=0.01)
    assert pair.wrong == 0


def test_pairs_within_a_host_are_marked_and_count_for_no_slow_host() -> None:
    found = report(("a", "a", "b", "b", "c", "c"), {(0, 1): 0.1, (1, 0): 0.1})
    assert [(pair.first, pair.second) for pair in found.pairs if pair.within] == [(0, 1)]
    assert [(pair.first, pair.second, pair.hosts) for pair in found.pairs if not pair.within] == [
        (0, 2, (0, 1)),
        (0, 4, (0, 2)),
        (2, 4, (1, 2)),
    ]
    assert found.slow is not None
    assert not found.slow.is_slow


def test_one_host_has_no_slow_host() -> None:
    assert report(("a", "a", "a")).slow is None


def test_a_slow_port_is_named_by_its_host() -> None:
    found = report(("a", "a", "b", "b", "c", "c"), {(2, 0): 0.25, (2, 4): 0.25})
    assert found.slow is not None
    assert [(port.host, port.direction) for port in found.slow.ports] == [(1, "sends")]


def test_a_bisection_adds_up_the_rates_of_all_pairs() -> None:
    found = report(("a", "b", "c", "d", "e")).bisection
    assert found is not None
    assert found.pairs == 2
    assert [round(each.estimate / RATE, 1) for each in (found.forth, found.back, found.both) if each] == [2, 2, 4]


def test_wrong_bytes_are_counted_by_pair_and_in_all() -> None:
    found = report(("a", "b", "c"), None, {"0-1": 1, "1-0": 2, "forth": 3})
    counts = {(pair.first, pair.second): pair.wrong for pair in found.pairs}
    # 0-1: five sizes of round trips, one way, both ways and the message rate; 1-0: one way and the message rate.
    assert counts == {(0, 1): 8 * 1 + 2 * 2, (0, 2): 0, (1, 2): 0}
    assert found.wrong == 12 + 3


def test_fitted_values_are_kept_by_pair() -> None:
    trips, *others = cases(("a", "b"))
    assert trips.values["alpha.0-1"] == pytest.approx(LATENCY, rel=0.01)
    assert trips.values["beta.0-1"] == pytest.approx(RATE, rel=0.01)
    assert all("beta.0-1" not in case.values for case in others)


def test_nothing_is_fitted_to_few_rounds_or_times_that_do_not_grow() -> None:
    assert fit_pair({8: [1e-4] * 5, 2**10: [1e-4] * 5, 2**20: [1e-2] * 5}) is None
    assert fit_pair({8: [1e-4] * 8, 2**10: [1e-4] * 8, 2**20: [1e-4] * 8}) is None
    assert fit_pair({8: [1e-4] * 8, 2**20: [1e-2] * 8}) is None


def test_cases_of_other_groups_hold_no_pairs() -> None:
    assert pairs_report([a_case()]) is None
