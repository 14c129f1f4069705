"""Predicted times of schedules, against closed forms; and the choice that follows from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.config.network import OPERATIONS, Operation
from convoy.network.collectives.algorithms import algorithms_for
from convoy.network.collectives.predicted import Link, Links, choose_algorithms, schedule_seconds

ALPHA, BETA, GAP = 1e-4, 50e6, 2e-5


def uniform(hosts: int) -> Links:
    return {(a, b): Link(ALPHA, BETA, GAP) for a in range(hosts) for b in range(hosts)}


def seconds(name: str, operation: Operation, size: int, n: int) -> float:
    algorithm = next(each for each in algorithms_for(operation, n) if each.name == name)
    return schedule_seconds(algorithm.schedule(operation, n), operation, size, uniform(n), range(n))


@pytest.mark.parametrize("n", [2, 4, 7])
def test_a_ring_takes_its_rounds_and_its_bytes(n: int) -> None:
    size = 2**20
    # Each rank has two messages in a round, of which one is sent and one received.
    expected = 2 * (n - 1) * (ALPHA + GAP + size / n / BETA)
    assert seconds("ring", "all_reduce", size, n) == pytest.approx(expected)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_recursive_doubling_sends_the_buffer_in_every_round(n: int) -> None:
    size, rounds = 2**16, n.bit_length() - 1
    assert seconds("recursive doubling", "all_reduce", size, n) == pytest.approx(rounds * (ALPHA + GAP + size / BETA))


def test_small_buffers_take_few_rounds_and_large_ones_few_bytes() -> None:
    chosen = choose_algorithms("all_reduce", (64, 2**26), uniform(8), range(8))
    assert chosen[64].name in ("recursive doubling", "direct exchange")
    assert chosen[2**26].name in ("ring", "halving-doubling", "direct exchange")
    assert choose_algorithms("all_to_all", (64,), uniform(16), range(16))[64].name in ("Bruck", "direct exchange")


def test_ranks_of_a_host_share_its_port() -> None:
    hosts = [0, 0, 1, 1]
    within, between = Link(1e-6, 1e12, 0.0), Link(0.0, BETA, 0.0)
    links = {(a, b): within if a == b else between for a in (0, 1) for b in (0, 1)}
    ring = next(each for each in algorithms_for("all_reduce", 4, 2) if each.name == "hierarchical")
    size = 2**24
    took = schedule_seconds(ring.schedule("all_reduce", 4, 2), "all_reduce", size, links, hosts)
    assert took == pytest.approx(size / BETA, rel=0.01)  # 2 (N - 1) / N of the buffer leaves each of two hosts


@given(st.sampled_from(OPERATIONS), st.integers(2, 9), st.integers(1, 2**24))
def test_more_bytes_never_take_less_time(operation: Operation, n: int, size: int) -> None:
    for algorithm in algorithms_for(operation, n):
        schedule = algorithm.schedule(operation, n)
        times = [schedule_seconds(schedule, operation, each, uniform(n), range(n)) for each in (size, 2 * size)]
        assert 0 < times[0] <= times[1]
