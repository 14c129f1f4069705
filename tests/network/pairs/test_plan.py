"""The plan of pairs: every pair of hosts is measured both ways, and no size takes too long."""

from hypothesis import given
from hypothesis import strategies as st

from convoy.network.pairs.plan import (
    MOST_HOSTS_ALONE,
    OPERATION_SECONDS,
    WINDOW,
    bisection_pairs,
    pair_tasks,
    pairs_between,
    pairs_within,
    rounds_between,
    window_probes,
)

TWO_BY_TWO = ("a", "a", "b", "b")


@given(st.integers(2, 16), st.integers(1, 4))
def test_every_pair_of_hosts_is_measured_both_ways(hosts: int, per_host: int) -> None:
    names = tuple(f"host {rank // per_host}" for rank in range(hosts * per_host))
    one_way = {pair for task in pair_tasks(names, 2**20, 1e9) if task.kind == "one way" for pair in task.pairs}
    between = {(a, b) for a, b in one_way if names[a] != names[b]}
    assert {(names[a], names[b]) for a, b in between} == {(a, b) for a in names for b in names if a != b}
    assert len(between) == hosts * (hosts - 1)
    assert len(one_way - between) == per_host * (per_host - 1)


@given(st.integers(2, 70), st.integers(1, 3))
def test_pairs_of_many_hosts_are_measured_at_once_and_no_host_twice_at_a_time(hosts: int, per_host: int) -> None:
    names = tuple(f"host {rank // per_host}" for rank in range(hosts * per_host))
    rounds = rounds_between(names)
    assert sorted(pair for pairs in rounds for pair in pairs) == pairs_between(names)
    for pairs in rounds:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len({*ranks})
    if hosts <= MOST_HOSTS_ALONE:
        assert {len(pairs) for pairs in rounds} == {1}
    else:
        assert len(rounds) == hosts - 1 + hosts % 2
        assert {len(pairs) for pairs in rounds} == {hosts // 2}


@given(st.integers(2, 17), st.integers(1, 4))
def test_a_bisection_uses_every_rank_once_and_sends_between_hosts_only(hosts: int, per_host: int) -> None:
    names = tuple(f"host {rank // per_host}" for rank in range(hosts * per_host))
    pairs = bisection_pairs(names)
    ranks = [rank for pair in pairs for rank in pair]
    assert len(ranks) == len({*ranks}) == hosts // 2 * 2 * per_host
    assert all(names[source] != names[target] for source, target in pairs)
    half = (hosts // 2) * per_host
    assert max(source for source, _ in pairs) < half <= len(names) - half <= min(target for _, target in pairs)


def test_ranks_of_one_host_are_pairs_within_it() -> None:
    assert pairs_between(("a",) * 3) == []
    assert pairs_within(("a",) * 3) == [(0, 1), (0, 2), (1, 2)]
    assert bisection_pairs(("a",) * 3) == ((0, 2),)
    assert pairs_between(TWO_BY_TWO) == [(0, 2)]
    assert pairs_within(TWO_BY_TWO) == [(0, 1)]
    assert bisection_pairs(TWO_BY_TWO) == ((0, 2), (1, 3))


def test_every_task_has_a_name_of_its_own() -> None:
    tasks = pair_tasks(TWO_BY_TWO, 2**24, 1e12)
    assert len({(task.kind, task.link, task.size) for task in tasks}) == len(tasks)
    assert {task.link for task in tasks if task.kind == "bisection"} == {"forth", "back", "both"}


@given(st.floats(1e5, 1e12), st.integers(1, 2**30))
def test_messages_grow_with_the_rate_of_the_slowest_link(rate: float, largest: int) -> None:
    tasks = pair_tasks(("a", "b"), largest, rate)
    assert all(task.size <= largest for task in tasks + window_probes(("a", "b"), largest))
    affordable = OPERATION_SECONDS * rate
    trips = sorted(task.size for task in tasks if task.kind == "half round trip")
    assert trips[-1] <= max(affordable, 2**20)
    (window,) = {task.size for task in tasks if task.kind in ("one way", "both ways", "bisection")}
    assert window * WINDOW <= affordable or window <= 2**16
    if affordable >= 2**28 and largest >= 2**24:
        assert trips[-1] == 2**24
        assert window == 2**22


def test_bytes_count_what_is_sent() -> None:
    tasks = {(task.kind, task.link): task for task in pair_tasks(TWO_BY_TWO, 2**20, 1e6)}
    assert tasks["one way", "0-2"].bytes == 64 * 2**16
    assert tasks["both ways", "0-2"].bytes == 2 * 64 * 2**16
    assert tasks["bisection", "both"].bytes == 4 * 64 * 2**16
    assert tasks["half round trip", "0-2"].bytes == 2**20
