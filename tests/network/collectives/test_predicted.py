"""Predicted times of schedules: closed forms on equal links, and what shared ports and slow links do."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from convoy.config.network import Operation
from convoy.network.collectives.algorithms import Algorithm, algorithms_for
from convoy.network.collectives.check_schedule import cost
from convoy.network.collectives.predicted import Link, Links, TimedSchedule, choose_algorithms, predict_times
from convoy.network.collectives.schedule import Schedule, Transfer
from tests.network.collectives.schedules import EVERY, named

ALPHA, RATE, GAP = 1e-4, 50e6, 2e-5

PLAIN = Link(ALPHA, RATE, 0.0)

WITHIN = Link(1e-6, 1e9, 0.0)


def equal_links(hosts: int, between: Link = PLAIN, within: Link = WITHIN) -> Links:
    every = range(hosts)
    return {(a, b): within if a == b else between for a in every for b in every}


def seconds(name: str, operation: Operation, size: int, links: Links, n: int) -> float:
    """With one rank on each host."""
    return TimedSchedule(operation, named(name).schedule(operation, n), links, range(n)).seconds(size)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("size", [0, 1000, 2**24])
def test_equal_links_take_what_closed_forms_say(n: int, size: int) -> None:
    links, byte = equal_links(n), 1 / RATE
    one_way = (n - 1) * ALPHA + (n - 1) / n * size * byte
    assert seconds("ring", "all_reduce", size, links, n) == pytest.approx(2 * one_way)
    assert seconds("ring", "all_gather", size, links, n) == pytest.approx(one_way)
    assert seconds("pairwise", "all_to_all", size, links, n) == pytest.approx(one_way)
    assert seconds("chain", "broadcast", size, links, n) == pytest.approx((8 + n - 2) * (ALPHA + size / 8 * byte))
    if n & (n - 1) == 0:
        steps = round(math.log2(n))
        assert seconds("recursive doubling", "all_reduce", size, links, n) == pytest.approx(
            steps * (ALPHA + size * byte)
        )
        assert seconds("halving-doubling", "all_reduce", size, links, n) == pytest.approx(
            2 * steps * ALPHA + 2 * (n - 1) / n * size * byte
        )


def test_messages_that_a_rank_sends_at_once_share_its_port_and_come_one_after_the_other() -> None:
    n, size = 5, 10**6
    links = equal_links(n, Link(ALPHA, RATE, GAP))
    expected = ALPHA + (n - 2) * GAP + (n - 1) / n * size / RATE
    for operation in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        assert seconds("direct exchange", operation, size, links, n) == pytest.approx(expected)


def test_ranks_of_a_host_share_its_network_but_not_their_links_within_it() -> None:
    crossing = Schedule(4, 1, ((Transfer(0, 2, (0,), "copy"), Transfer(1, 3, (0,), "copy")),))
    inside = Schedule(4, 1, ((Transfer(0, 1, (0,), "copy"), Transfer(1, 0, (0,), "copy")),))
    size, hosts = 10**6, (0, 0, 1, 1)

    def time(schedule: Schedule) -> float:
        return TimedSchedule("broadcast", schedule, equal_links(2), hosts).seconds(size)

    assert time(crossing) == pytest.approx(ALPHA + 2 * size / RATE)
    assert time(inside) == pytest.approx(1e-6 + size / 1e9)


def test_a_hierarchical_all_reduce_takes_its_three_parts() -> None:
    hosts, per_host, size = 2, 4, 2**24
    schedule = named("hierarchical").schedule("all_reduce", hosts * per_host, per_host)
    found = TimedSchedule("all_reduce", schedule, equal_links(hosts), (0, 0, 0, 0, 1, 1, 1, 1)).seconds(size)
    within = 2 * (per_host - 1) * (1e-6 + size / per_host / 1e9)
    between = 2 * (hosts - 1) * (ALPHA + size / hosts / RATE)  # all ranks of a host together
    assert found == pytest.approx(within + between)


def test_a_rank_waits_for_its_own_messages_alone() -> None:
    links = {**equal_links(4), (0, 1): Link(1.0, RATE, 0.0)}
    rounds = ((Transfer(0, 1, (0,), "copy"), Transfer(2, 3, (0,), "copy")), (Transfer(3, 2, (0,), "copy"),))
    assert TimedSchedule("broadcast", Schedule(4, 1, rounds), links, range(4)).seconds(0) == pytest.approx(1.0)
    waits = (*rounds, (Transfer(1, 2, (0,), "copy"),))
    assert TimedSchedule("broadcast", Schedule(4, 1, waits), links, range(4)).seconds(0) == pytest.approx(1.0 + ALPHA)


def test_a_slow_port_slows_what_passes_it_in_that_direction() -> None:
    size, even = 10**6, equal_links(4)
    links = {pair: Link(0.0, RATE / 4 if pair[0] == 1 else RATE, 0.0) for pair in even}
    took = seconds("direct exchange", "all_gather", size, links, 4)
    assert took == pytest.approx(4 * (seconds("direct exchange", "all_gather", size, even, 4) - ALPHA))
    receives = Schedule(4, 1, ((Transfer(0, 1, (0,), "copy"),),))
    assert TimedSchedule("broadcast", receives, links, range(4)).seconds(size) == pytest.approx(size / RATE)


@given(
    case=st.sampled_from(EVERY),
    shape=st.sampled_from([(2, 1), (4, 1), (8, 1), (6, 2), (8, 4)]),
    sizes=st.tuples(st.integers(0, 2**30), st.integers(0, 2**30)),
    alpha=st.floats(0, 1e-2),
    rate=st.floats(1e6, 1e11),
)
def test_time_grows_with_the_size_and_is_at_least_what_the_busiest_rank_sends(
    case: tuple[Algorithm, Operation], shape: tuple[int, int], sizes: tuple[int, int], alpha: float, rate: float
) -> None:
    algorithm, operation = case
    ranks, per_host = shape
    assume(algorithm.can(operation, ranks, per_host))
    schedule = algorithm.schedule(operation, ranks, per_host)
    links = equal_links(ranks // per_host, Link(alpha, rate, 0.0), Link(alpha, rate, 0.0))
    timed = TimedSchedule(operation, schedule, links, [rank // per_host for rank in range(ranks)])
    small, large = (timed.seconds(size) for size in sorted(sizes))
    assert small <= large
    ports = 2 if 1 < per_host < ranks else 1  # within its host, and to others
    assert large >= max(alpha, cost(operation, schedule).sent * max(sizes) / rate / ports) * (1 - 1e-9)


def test_few_rounds_are_chosen_for_small_buffers_and_few_bytes_for_large_ones() -> None:
    links, sizes = equal_links(8, Link(1e-3, RATE, 1e-3)), [8, 2**26]
    chosen = choose_algorithms("all_reduce", sizes, links, range(8))
    assert {size: each.name for size, each in chosen.items()} == {8: "recursive doubling", 2**26: "halving-doubling"}
    times = predict_times("all_reduce", sizes, links, range(8))
    assert list(times) == algorithms_for("all_reduce", 8)
    for i, size in enumerate(sizes):
        assert times[chosen[size]][i] == min(each[i] for each in times.values())


def test_the_hierarchical_algorithm_is_chosen_where_links_within_hosts_are_fast() -> None:
    links = equal_links(4, Link(2e-5, 12.5e9, 0.0), Link(5e-6, 300e9, 0.0))
    hosts = [rank // 8 for rank in range(32)]
    assert choose_algorithms("all_reduce", [2**30], links, hosts)[2**30].name == "hierarchical"


def test_ranks_that_do_not_follow_each_other_host_by_host_have_no_hierarchy() -> None:
    def names(hosts: Sequence[int]) -> list[str]:
        return [each.name for each in predict_times("all_reduce", [8], equal_links(3), hosts)]

    assert "hierarchical" in names((0, 0, 1, 1))
    for hosts in ((0, 1, 0, 1), (0, 0, 0, 1), (0, 0, 1, 2)):
        assert "hierarchical" not in names(hosts)
