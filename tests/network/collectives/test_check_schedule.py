"""Faults in schedules, and the lines that name them."""

import random
from collections.abc import Callable, Iterator

import pytest

from convoy.network.collectives.check_schedule import problems
from convoy.network.collectives.schedule import Schedule, Transfer
from tests.network.collectives.schedules import EVERY, is_right, named, numbers_after, shapes

Change = Callable[[Transfer, Schedule], list[Transfer]]
"""What a faulty schedule has in place of a transfer; empty: nothing."""


def _other_chunks(t: Transfer, schedule: Schedule) -> list[Transfer]:
    others = tuple((chunk + 1) % schedule.chunks for chunk in t.chunks)
    return [t._replace(chunks=others, target_chunks=t.stored)]


def _swapped(t: Transfer, schedule: Schedule) -> list[Transfer]:
    first, second, *others = t.stored
    return [t._replace(target_chunks=(second, first, *others))]


def _one_lost(t: Transfer, schedule: Schedule) -> list[Transfer]:
    return [t._replace(chunks=t.chunks[1:], target_chunks=t.stored[1:])]


FAULTS: dict[str, tuple[Change, Callable[[Transfer, Schedule], bool]]] = {
    "message lost": (lambda t, schedule: [], lambda t, schedule: True),
    "chunk lost": (_one_lost, lambda t, schedule: len(t.chunks) > 1),
    "sum doubled": (lambda t, schedule: [t, t], lambda t, schedule: t.op == "add"),
    "other chunks": (_other_chunks, lambda t, schedule: schedule.chunks > 1),
    "chunks swapped": (_swapped, lambda t, schedule: len(t.chunks) > 1),
    "overwritten": (lambda t, schedule: [t._replace(op="copy")], lambda t, schedule: t.op == "add"),
    "other rank": (
        lambda t, schedule: [t._replace(target=(t.target + 1) % schedule.ranks)],
        lambda t, schedule: schedule.ranks > 2,
    ),
}
"""By name: the change, and whether a transfer can have it."""


def planted(schedule: Schedule, change: Change, i: int, j: int) -> Schedule:
    """The schedule with a fault in place of a transfer; what comes twice is in a round of its own."""
    rounds = [list(each) for each in schedule.rounds]
    first, *again = change(rounds[i][j], schedule) or [None]
    rounds[i][j : j + 1] = [] if first is None else [first]
    rounds[i + 1 : i + 1] = [again] if again else []
    return schedule._replace(rounds=tuple(tuple(each) for each in rounds))


def places(fault: str, schedule: Schedule) -> Iterator[tuple[int, int]]:
    """Transfers that can have the fault, by round and number."""
    possible = FAULTS[fault][1]
    for i, each in enumerate(schedule.rounds):
        yield from ((i, j) for j, t in enumerate(each) if t.source != t.target and possible(t, schedule))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_where_it_makes_a_number_wrong(fault: str) -> None:
    """A message that goes to another rank, for example, may still be right: where that rank would get it anyway."""
    draw, wrong, disagreed = random.Random(1), 0, []
    for algorithm, operation in EVERY:
        shaped = shapes(algorithm, operation)
        for n, per_host in [*shaped[:4], draw.choice(shaped)]:
            schedule = algorithm.schedule(operation, n, per_host)
            possible = list(places(fault, schedule))
            for place in draw.sample(possible, min(len(possible), 5)):
                faulty = planted(schedule, FAULTS[fault][0], *place)
                before = [[draw.getrandbits(60) for _ in range(schedule.chunks)] for _ in range(n)]
                is_wrong = not is_right(operation, faulty, before, numbers_after(faulty, before))
                lines = problems(operation, faulty)
                wrong += is_wrong
                if is_wrong != bool(lines) and not any(line.startswith("round") for line in lines):
                    disagreed.append((algorithm.name, operation, n, place, lines))
    assert disagreed == []
    assert wrong >= 50


def test_a_problem_names_the_rank_the_chunk_and_both_contents() -> None:
    doubled = "rank 0 × 2, rank 1, rank 2 × 2"
    ring = named("ring").schedule("all_reduce", 3)
    assert problems("all_reduce", planted(ring, FAULTS["sum doubled"][0], 1, 0)) == [
        f"rank {rank}, chunk 1: has chunk 1 of {doubled}, must have chunk 1 of rank 0, rank 1, rank 2"
        for rank in range(3)
    ]
    gather = named("direct exchange").schedule("gather", 3)
    assert problems("gather", planted(gather, FAULTS["message lost"][0], 0, 1)) == [
        "rank 0, chunk 2: has nothing, must have chunk 2 of rank 2"
    ]


def test_a_transfer_that_no_executor_can_carry_out_is_named() -> None:
    twice = Schedule(2, 2, ((Transfer(0, 1, (0,), "copy"), Transfer(0, 1, (1,), "copy")),))
    assert problems("broadcast", twice) == ["round 0: 0 sends to 1 twice"]
    outside = Schedule(2, 2, ((Transfer(0, 2, (5,), "copy"),),))
    assert problems("broadcast", outside) == [
        "round 0: from 0 to 2, of 2 ranks",
        "round 0: chunks (5,) to (5,), of 2",
    ]


def test_messages_whose_order_would_decide_are_named() -> None:
    copies = Schedule(3, 1, ((Transfer(0, 2, (0,), "copy"), Transfer(1, 2, (0,), "copy")),))
    mixed = Schedule(3, 1, ((Transfer(0, 2, (0,), "add"), Transfer(1, 2, (0,), "copy")),))
    for schedule in (copies, mixed):
        assert problems("reduce", schedule) == [
            "round 0: rank 2, chunk 0: a message overwrites what another one stores"
        ]
