"""Algorithms chosen from links between pairs."""

import itertools
from typing import Any

import pytest

from convoy.benchmark.analysis.network_choice import choices, links_of
from convoy.benchmark.results.pairs import PairFigures, PairsReport
from convoy.stats.interval import Interval, interval

ALPHA, RATE = 1e-3, 50e6


def exactly(value: float) -> Interval:
    return interval([value] * 8)


def pair(first: int, second: int, hosts: tuple[int, int], **changed: Any) -> PairFigures:
    """A link of 1 ms and 50 MB/s forth, half of that back; 10,000 messages a second."""
    fields: dict[str, Any] = {
        "first": first,
        "second": second,
        "hosts": hosts,
        "latency": exactly(ALPHA),
        "link": None,
        "forth": exactly(RATE),
        "back": exactly(RATE / 2),
        "both": None,
        "messages_forth": exactly(1e4),
        "messages_back": exactly(5e3),
        "wrong": 0,
    }
    return PairFigures(**fields | changed)


def report(*pairs: PairFigures) -> PairsReport:
    return PairsReport(pairs=pairs, bisection=None, slow=None, lab="")


def four_hosts(**changed: Any) -> PairsReport:
    return report(*(pair(a, b, (a, b), **changed) for a, b in itertools.combinations(range(4), 2)))


def test_each_direction_has_its_own_rate_and_gap() -> None:
    found = links_of(report(pair(0, 1, (0, 1))), 2)
    assert found is not None
    links, hosts = found
    assert hosts == (0, 1)
    assert links[0, 1] == pytest.approx((ALPHA, RATE, 1e-4))
    assert links[1, 0] == pytest.approx((ALPHA, RATE / 2, 2e-4))


def test_ranks_that_were_not_measured_have_the_links_of_their_hosts() -> None:
    inside = pair(0, 1, (0, 0), latency=exactly(1e-5), back=exactly(RATE))
    found = links_of(report(pair(0, 2, (0, 1)), inside), 4)
    assert found is not None
    links, hosts = found
    assert hosts == (0, 0, 1, 1)
    assert links[1, 1].latency == links[0, 0].latency == pytest.approx(1e-5)


def test_there_are_no_links_without_those_of_all_hosts_and_an_even_order_of_ranks() -> None:
    assert links_of(report(), 2) is None
    assert links_of(report(pair(0, 1, (0, 1), forth=None)), 2) is None
    assert links_of(report(pair(0, 1, (0, 1)), pair(0, 2, (0, 2))), 3) is None
    assert links_of(report(pair(0, 1, (0, 1))), 3) is None
    assert links_of(report(pair(0, 1, (0, 1))), 4) is None  # of four ranks, the second would be on the first host


def blocks(latency: float, rate: float) -> dict[int, list[float]]:
    return {size: [latency + size / rate] * 6 for size in (2**10, 2**22)}


MEASURED = {
    "recursive doubling": blocks(2e-3, 25e6),
    "ring": blocks(6e-3, 33e6),
    "halving-doubling": blocks(4e-3, 30e6),
}


def test_the_choice_is_held_against_the_fastest_algorithm_of_the_size() -> None:
    even = four_hosts(back=exactly(RATE), messages_forth=exactly(200.0), messages_back=exactly(200.0))
    small, large = choices("all_reduce", MEASURED, even, 4)
    assert (small.size, small.name, small.over_best) == (2**10, "recursive doubling", 1.0)
    assert (large.size, large.name) == (2**22, "halving-doubling")
    assert large.over_best == pytest.approx((4e-3 + 2**22 / 30e6) / (6e-3 + 2**22 / 33e6))


def test_a_choice_that_was_not_measured_is_left_out() -> None:
    at_once = four_hosts(back=exactly(RATE), messages_forth=exactly(1e9), messages_back=exactly(1e9))
    assert [each.size for each in choices("all_reduce", MEASURED, at_once, 4)] == []  # direct exchange was chosen
