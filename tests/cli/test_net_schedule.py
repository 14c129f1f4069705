"""`convoy net schedule`: its JSON describes the collective by itself, and bad input is one line."""

import json
import random
from typing import Any

import pytest

from convoy.config.network import OPERATIONS, Operation
from convoy.network.collectives.algorithms import Algorithm
from tests.cli import assert_refused, convoy
from tests.network.collectives.schedules import EVERY

SHAPES = [(2, 1), (4, 2), (6, 3), (7, 1), (8, 4)]


def numbers_after(printed: dict[str, Any], numbers: list[list[int]]) -> list[list[int]]:
    """The printed rounds, carried out on a number for each chunk of each rank."""
    for transfers in printed["rounds"]:
        before = [list(chunks) for chunks in numbers]
        for t in transfers:
            for chunk in t["chunks"]:
                own = numbers[t["to"]][chunk] if t["op"] == "add" else 0
                numbers[t["to"]][chunk] = own + before[t["from"]][chunk]
    return numbers


def demanded(operation: Operation, ranks: int, rank: int, chunk: int, before: list[list[int]]) -> int | None:
    """The number that a rank must have at the end; None: any."""
    chunks, everyone = len(before[0]), sum(of[chunk] for of in before)
    part, first = chunk * ranks // chunks, rank == 0
    rows: dict[Operation, int | None] = {
        "all_reduce": everyone,
        "reduce": everyone if first else None,
        "broadcast": before[0][chunk],
        "all_gather": before[part][chunk],
        "gather": before[part][chunk] if first else None,
        "reduce_scatter": everyone if part == rank else None,
        "scatter": before[0][chunk] if part == rank else None,
        "all_to_all": before[part][chunk] if chunk % ranks == rank else None,
    }
    return rows[operation]


@pytest.mark.parametrize(("algorithm", "operation"), EVERY, ids=lambda each: getattr(each, "name", each))
def test_the_printed_rounds_do_what_the_operation_demands(algorithm: Algorithm, operation: Operation) -> None:
    draw = random.Random(1)
    for ranks, per_host in [shape for shape in SHAPES if algorithm.can(operation, *shape)]:
        name = algorithm.name.replace(" ", "-")
        done = convoy(
            "net", "schedule", operation, "--algorithm", name, "--ranks", ranks, "--ranks-per-host", per_host, "--json"
        )
        assert done.exit_code == 0
        printed = json.loads(done.stdout)
        assert list(printed) == ["ranks", "chunks", "rounds"]
        messages = [t for each in printed["rounds"] for t in each]
        assert {tuple(t) for t in messages} == {("from", "to", "chunks", "op")}
        assert all(t["from"] != t["to"] for t in messages)
        before = [[draw.getrandbits(60) for _ in range(printed["chunks"])] for _ in range(ranks)]
        after = numbers_after(printed, [list(chunks) for chunks in before])
        for rank in range(ranks):
            for chunk, number in enumerate(after[rank]):
                wanted = demanded(operation, ranks, rank, chunk, before)
                assert wanted is None or number == wanted, (ranks, rank, chunk)


def test_a_schedule_is_printed_by_rounds() -> None:
    done = convoy("net", "schedule", "all_gather", "--algorithm", "ring", "--ranks", 2)
    assert done.stdout.splitlines() == [
        "all_gather by ring, 2 ranks: 1 round, 2 chunks; a rank sends at most 0.5 × the buffer",
        "round 1",
        "  0 → 1: chunk 0, copied",
        "  1 → 0: chunk 1, copied",
    ]
    reduction = convoy("net", "schedule", "all_reduce", "--algorithm", "halving-doubling", "--ranks", 8).stdout
    assert "  0 → 4: chunks 4 to 7, added" in reduction


def test_an_all_to_all_names_chunks_by_whose_they_are_and_for_whom() -> None:
    done = convoy("net", "schedule", "all_to_all", "--algorithm", "Bruck", "--ranks", 3)
    assert done.stdout.splitlines()[-4:] == [
        "round 2",
        "  0 → 2: chunk 2, copied",
        "  1 → 0: chunk 3, copied",
        "  2 → 1: chunk 7, copied",
    ]


def refused(line: str, op: str, algorithm: str, ranks: int, per_host: int = 1) -> None:
    words = ("--algorithm", algorithm, "--ranks", ranks, "--ranks-per-host", per_host)
    assert_refused(line, "net", "schedule", op, *words)


def test_bad_input_is_one_line_that_says_what_would_be_right() -> None:
    refused(
        f"OP = all-reduce: must be one of {', '.join(OPERATIONS)}; did you mean all_reduce?",
        "all-reduce",
        "ring",
        4,
    )
    refused(
        "algorithm tree: for broadcast must be one of chain, binary tree",
        "broadcast",
        "tree",
        4,
    )
    refused("--ranks 1: must be from 2 to 512", "all_reduce", "ring", 1)
    refused("--ranks 100000: must be from 2 to 512", "all_reduce", "ring", 100000)
    refused("--ranks-per-host 3: must divide --ranks, 8", "all_reduce", "hierarchical", 8, 3)
    refused("--ranks-per-host 0: must divide --ranks, 8", "all_reduce", "ring", 8, 0)
    refused(
        "algorithm halving-doubling: all_gather needs a power of two of ranks, not 6 with 1 on each host; these can "
        "use ring, recursive doubling, direct exchange",
        "all_gather",
        "halving-doubling",
        6,
    )
