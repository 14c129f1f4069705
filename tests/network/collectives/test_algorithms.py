"""Every algorithm on 2 to 33 ranks, carried out with symbols; and the faults that this finds."""

import math
import random

import pytest

from convoy.config.network import OPERATIONS, Operation
from convoy.network.collectives.algorithms import ALGORITHMS, PIECES, Algorithm, algorithms_for
from convoy.network.collectives.check_schedule import Cost, cost, problems
from convoy.network.collectives.schedule import Schedule, Transfer

RANKS = range(2, 34)

EVERY = [(algorithm, operation) for algorithm in ALGORITHMS for operation in algorithm.operations]


def shapes(algorithm: Algorithm, operation: Operation) -> list[tuple[int, int]]:
    """Ranks, and how many of them share a host, that the algorithm allows."""
    hosts = [(n, per_host) for n in RANKS for per_host in range(1, n) if n % per_host == 0]
    every = hosts if algorithm.name == "hierarchical" else [(n, 1) for n in RANKS]
    return [shape for shape in every if algorithm.can(operation, *shape)]


@pytest.mark.parametrize(("algorithm", "operation"), EVERY, ids=lambda each: getattr(each, "name", each))
def test_every_rank_ends_with_what_the_operation_demands(algorithm: Algorithm, operation: Operation) -> None:
    allowed = shapes(algorithm, operation)
    assert len(allowed) >= 5
    for shape in allowed:
        assert problems(operation, algorithm.schedule(operation, *shape)) == [], shape


def rounds_of_doubling(n: int) -> int:
    """log2 n rounds, and one more before and after where n is no power of two."""
    whole = n.bit_length() - 1
    return whole if n == 1 << whole else whole + 2


THEORY = {
    ("ring", "all_reduce"): lambda n: Cost(2 * (n - 1), 2 * (n - 1) / n),
    ("ring", "all_gather"): lambda n: Cost(n - 1, (n - 1) / n),
    ("ring", "reduce_scatter"): lambda n: Cost(n - 1, (n - 1) / n),
    ("chain", "broadcast"): lambda n: Cost(PIECES + n - 2, 1.0),
    ("chain", "reduce"): lambda n: Cost(PIECES + n - 2, 1.0),
    ("recursive doubling", "all_gather"): lambda n: Cost(math.ceil(math.log2(n)), (n - 1) / n),
    ("pairwise", "all_to_all"): lambda n: Cost(n - 1, (n - 1) / n),
    ("direct exchange", "all_reduce"): lambda n: Cost(2, 2 * (n - 1) / n),
    ("direct exchange", "all_gather"): lambda n: Cost(1, (n - 1) / n),
    ("direct exchange", "reduce_scatter"): lambda n: Cost(1, (n - 1) / n),
    ("direct exchange", "all_to_all"): lambda n: Cost(1, (n - 1) / n),
}


@pytest.mark.parametrize(("name", "operation"), THEORY)
@pytest.mark.parametrize("n", RANKS)
def test_rounds_and_bytes_are_those_of_theory(name: str, operation: Operation, n: int) -> None:
    algorithm = named(name, operation, n)
    expected = THEORY[name, operation](n)
    found = cost(operation, algorithm.schedule(operation, n))
    assert (found.rounds, found.sent) == (expected.rounds, pytest.approx(expected.sent))


@pytest.mark.parametrize("n", [n for n in RANKS if n & (n - 1) == 0])
def test_doubling_and_halving_take_as_few_rounds_as_can_be(n: int) -> None:
    rounds = int(math.log2(n))
    assert cost("all_reduce", named("recursive doubling", "all_reduce", n).schedule("all_reduce", n)) == (
        rounds,
        rounds,
    )
    halving = cost("all_reduce", named("halving-doubling", "all_reduce", n).schedule("all_reduce", n))
    assert halving == (2 * rounds, pytest.approx(2 * (n - 1) / n))
    if n > 2:
        bruck = cost("all_to_all", named("Bruck", "all_to_all", n).schedule("all_to_all", n))
        assert bruck == (rounds, pytest.approx(rounds / 2))


@pytest.mark.parametrize("n", RANKS)
def test_ranks_above_a_power_of_two_take_two_rounds_more(n: int) -> None:
    schedule = named("recursive doubling", "all_reduce", n).schedule("all_reduce", n)
    assert len(schedule.rounds) == rounds_of_doubling(n)


def test_a_hierarchical_all_reduce_sends_each_byte_between_hosts_once_and_back() -> None:
    for hosts, per_host in ((2, 8), (4, 4), (3, 5)):
        schedule = named("hierarchical", "all_reduce", hosts * per_host, per_host).schedule(
            "all_reduce", hosts * per_host, per_host
        )
        crossing = [t for each in schedule.rounds for t in each if t.source // per_host != t.target // per_host]
        assert all(t.source % per_host == t.target % per_host for t in crossing)  # each on its own rail
        sent = sum(len(t.chunks) for t in crossing if t.source < per_host) / schedule.chunks
        assert sent == pytest.approx(2 * (hosts - 1) / hosts)


def test_every_operation_has_an_algorithm_and_unknown_shapes_are_refused() -> None:
    assert all(algorithms_for(operation, n) for operation in OPERATIONS for n in RANKS)
    assert algorithms_for("all_reduce", 1) == []
    with pytest.raises(ValueError, match="halving-doubling: has no all_gather of 6 ranks"):
        named("halving-doubling", "all_gather", 4).schedule("all_gather", 6)


def named(name: str, operation: Operation, ranks: int, per_host: int = 1) -> Algorithm:
    return next(each for each in algorithms_for(operation, ranks, per_host) if each.name == name)


def planted(schedule: Schedule, draw: random.Random) -> Schedule:
    """The schedule with one fault: a message lost, added twice, of other chunks, or sent to another rank."""
    rounds = [list(each) for each in schedule.rounds]
    candidates = [(i, j) for i, each in enumerate(rounds) for j, t in enumerate(each) if t.source != t.target]
    i, j = draw.choice(candidates)
    t = rounds[i][j]
    kinds = ["lost", "doubled" if t.op == "add" else "other rank"] + ["other chunk"] * (schedule.chunks > 1)
    match draw.choice(kinds):
        case "lost":
            rounds[i].remove(t)
        case "doubled":
            rounds.insert(i + 1, [t])
        case "other chunk":
            others = tuple((chunk + 1) % schedule.chunks for chunk in t.chunks)
            rounds[i][j] = t._replace(chunks=others, target_chunks=t.stored)
        case "other rank":
            rounds[i][j] = t._replace(target=draw.choice([r for r in range(schedule.ranks) if r != t.target]))
    return schedule._replace(rounds=tuple(tuple(each) for each in rounds))


def test_planted_faults_are_found() -> None:
    draw, missed = random.Random(1), []
    for algorithm, operation in EVERY:
        for n, per_host in shapes(algorithm, operation)[:6]:
            schedule = algorithm.schedule(operation, n, per_host)
            for _ in range(8):
                faulty = planted(schedule, draw)
                if not problems(operation, faulty):
                    missed.append((algorithm.name, operation, n, faulty))
    assert missed == []


def test_a_transfer_that_no_executor_can_carry_out_is_named() -> None:
    twice = Schedule(2, 2, ((Transfer(0, 1, (0,), "copy"), Transfer(0, 1, (1,), "copy")),))
    assert problems("broadcast", twice) == ["round 0: 0 sends to 1 twice"]
    outside = Schedule(2, 2, ((Transfer(0, 2, (5,), "copy"),),))
    assert problems("broadcast", outside) == [
        "round 0: from 0 to 2, of 2 ranks",
        "round 0: chunks (5,) to (5,), of 2",
    ]
