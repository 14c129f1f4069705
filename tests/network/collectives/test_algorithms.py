"""Every algorithm on 2 to 33 ranks: its result by symbols and by numbers, its rounds and bytes by theory."""

import math
import random
import re

import pytest

from convoy.config.errors import ConfigError
from convoy.config.network import OPERATIONS, Operation
from convoy.network.collectives.algorithms import PIECES, Algorithm, algorithms_for, find_algorithm
from convoy.network.collectives.check_schedule import Cost, cost, problems
from tests.network.collectives.schedules import EVERY, RANKS, is_right, named, numbers_after, shapes


@pytest.mark.parametrize(("algorithm", "operation"), EVERY, ids=lambda each: getattr(each, "name", each))
def test_every_rank_ends_with_what_the_operation_demands(algorithm: Algorithm, operation: Operation) -> None:
    allowed = shapes(algorithm, operation)
    assert len(allowed) >= 5
    draw = random.Random(1)
    for shape in allowed:
        schedule = algorithm.schedule(operation, *shape)
        assert problems(operation, schedule) == [], shape
        before = [[draw.getrandbits(60) for _ in range(schedule.chunks)] for _ in range(schedule.ranks)]
        assert is_right(operation, schedule, before, numbers_after(schedule, before)), shape


def doubling(n: int) -> int:
    """Whole number of times that 2 can be doubled without exceeding n, and one more."""
    return int(math.log2(n))


def folded(n: int) -> int:
    """Rounds for the ranks above a power of two: one before, one after."""
    return 2 if n > 1 << doubling(n) else 0


def depth(n: int) -> int:
    """Levels of the binary tree below its root."""
    return math.ceil(math.log2(n + 1)) - 1


def tree_rounds(n: int, levels: int, edges: int) -> int:
    """A level takes two rounds, and each piece follows the one before after two. edges: how often a piece reaches or
    leaves the lowest level, which takes one round less where it consists of one rank."""
    alone = n == 1 << depth(n)
    return 2 * levels + 2 * (PIECES - 1) - edges * alone


def halved(n: int) -> float:
    """A core of 2^k ranks halves and doubles; a rank that took in one above it also returns the whole sum."""
    core = 1 << doubling(n)
    return 2 * (core - 1) / core + (1 if n > core else 0)


def hops(n: int) -> float:
    """Parts that a rank sends in Bruck's all-to-all: one for each power of two in each distance."""
    return sum(distance.bit_count() for distance in range(1, n)) / n


THEORY = {
    ("ring", "all_reduce"): lambda n: Cost(2 * (n - 1), 2 * (n - 1) / n),
    ("ring", "all_gather"): lambda n: Cost(n - 1, (n - 1) / n),
    ("ring", "reduce_scatter"): lambda n: Cost(n - 1, (n - 1) / n),
    ("chain", "broadcast"): lambda n: Cost(PIECES + n - 2, 1.0),
    ("chain", "reduce"): lambda n: Cost(PIECES + n - 2, 1.0),
    ("recursive doubling", "all_gather"): lambda n: Cost(math.ceil(math.log2(n)), (n - 1) / n),
    ("recursive doubling", "all_reduce"): lambda n: Cost(doubling(n) + folded(n), doubling(n) + folded(n) / 2),
    ("halving-doubling", "all_reduce"): lambda n: Cost(2 * doubling(n) + folded(n), halved(n)),
    ("halving-doubling", "all_gather"): lambda n: Cost(doubling(n), (n - 1) / n),
    ("halving-doubling", "reduce_scatter"): lambda n: Cost(doubling(n), (n - 1) / n),
    # Of n = 2 each second round has no message: the tree is a chain.
    ("binary tree", "broadcast"): lambda n: Cost(PIECES if n == 2 else tree_rounds(n, depth(n), 1), min(n - 1, 2)),
    ("binary tree", "reduce"): lambda n: Cost(PIECES if n == 2 else tree_rounds(n, depth(n), 1), 1),
    ("binary tree", "all_reduce"): lambda n: Cost(
        2 * PIECES if n == 2 else tree_rounds(n, 2 * depth(n), 2), 1 if n == 2 else 2 if n < 5 else 3
    ),
    ("Bruck", "all_to_all"): lambda n: Cost(math.ceil(math.log2(n)), hops(n)),
    ("pairwise", "all_to_all"): lambda n: Cost(n - 1, (n - 1) / n),
    ("direct exchange", "all_reduce"): lambda n: Cost(2, 2 * (n - 1) / n),
    ("direct exchange", "all_gather"): lambda n: Cost(1, (n - 1) / n),
    ("direct exchange", "reduce_scatter"): lambda n: Cost(1, (n - 1) / n),
    ("direct exchange", "all_to_all"): lambda n: Cost(1, (n - 1) / n),
    ("direct exchange", "gather"): lambda n: Cost(1, 1 / n),
    ("direct exchange", "scatter"): lambda n: Cost(1, (n - 1) / n),
}


@pytest.mark.parametrize(("name", "operation"), THEORY)
def test_rounds_and_bytes_are_those_of_theory(name: str, operation: Operation) -> None:
    algorithm = named(name)
    for n, _ in shapes(algorithm, operation):
        expected = THEORY[name, operation](n)
        found = cost(operation, algorithm.schedule(operation, n))
        assert (n, found.rounds, found.sent) == (n, expected.rounds, pytest.approx(expected.sent))


def test_theory_speaks_of_every_algorithm_but_the_hierarchical_one() -> None:
    assert {(algorithm.name, operation) for algorithm, operation in EVERY} - {*THEORY} == {
        ("hierarchical", "all_reduce")
    }


def test_a_hierarchical_all_reduce_sends_each_byte_between_hosts_once_and_back() -> None:
    for hosts, per_host in ((2, 8), (4, 4), (3, 5)):
        schedule = named("hierarchical").schedule("all_reduce", hosts * per_host, per_host)
        assert cost("all_reduce", schedule).rounds == 2 * (per_host - 1) + 2 * (hosts - 1)
        crossing = [t for each in schedule.rounds for t in each if t.source // per_host != t.target // per_host]
        assert all(t.source % per_host == t.target % per_host for t in crossing)  # each on its own rail
        sent = sum(len(t.chunks) for t in crossing if t.source < per_host) / schedule.chunks
        assert sent == pytest.approx(2 * (hosts - 1) / hosts)


def test_every_operation_has_an_algorithm_and_unknown_shapes_are_refused() -> None:
    assert all(algorithms_for(operation, n) for operation in OPERATIONS for n in RANKS)
    assert algorithms_for("all_reduce", 1) == []
    with pytest.raises(ValueError, match="halving-doubling: has no all_gather of 6 ranks"):
        named("halving-doubling").schedule("all_gather", 6)


def test_an_algorithm_is_found_by_its_name_and_a_wrong_one_is_refused_in_one_line() -> None:
    assert find_algorithm("Recursive_Doubling", "all_reduce", 6) is named("recursive doubling")
    assert find_algorithm("bruck", "all_to_all", 3) is named("Bruck")
    refused: list[tuple[tuple[str, Operation, int, int], str]] = [
        (("rings", "all_gather", 4, 1), "algorithm rings: for all_gather must be one of ring, recursive doubling"),
        (("ring", "broadcast", 4, 1), "algorithm ring: for broadcast must be one of chain, binary tree"),
        (
            ("halving-doubling", "all_gather", 6, 1),
            "algorithm halving-doubling: all_gather needs a power of two of ranks, not 6 with 1 on each host",
        ),
        (("Bruck", "all_to_all", 2, 1), "not 2 with 1 on each host; these can use direct exchange, pairwise"),
        (("hierarchical", "all_reduce", 8, 8), "algorithm hierarchical: all_reduce needs several hosts"),
    ]
    for words, line in refused:
        with pytest.raises(ConfigError, match=re.escape(line)):
            find_algorithm(*words)
