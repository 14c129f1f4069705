"""The backend's collectives on exact contributions: right results count nothing, one wrong element counts one."""

import pytest
import torch
import torch.distributed as dist

from convoy.config.network import IN_AND_OUT_OF_PLACE, OPERATIONS, Operation
from convoy.network.collectives.algorithms import algorithms_for
from convoy.network.collectives.exact import LARGEST_EXACT, ExactProblem, count_wrong
from convoy.network.collectives.exchange import DTYPES, backend_exchange, element_count, scheduled_exchange
from tests.ranks import in_a_group

CPU = torch.device("cpu")


def wrong_of_every_operation(rank: int, ranks: int, dtype: torch.dtype) -> dict[str, int]:
    wrong = {}
    for operation in OPERATIONS:
        for in_place in (False, True) if operation in IN_AND_OUT_OF_PLACE else (False,):
            total = element_count(operation, 8 * 1024, ranks, dtype)
            problem = ExactProblem(operation, rank, ranks, total, dtype, CPU)
            exchange = backend_exchange(problem, None, in_place=in_place)
            wrong[f"{operation} {in_place}"] = exchange.check() + exchange.check()
    dist.destroy_process_group()
    return wrong


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_backend_is_right_in_every_operation(ranks: int) -> None:
    for wrong in in_a_group(ranks, wrong_of_every_operation, ranks, torch.bfloat16):
        assert set(wrong.values()) == {0}, wrong
        assert len(wrong) == len(OPERATIONS) + len(IN_AND_OUT_OF_PLACE)


def wrong_with_a_fault(rank: int, ranks: int, faulty: int) -> int:
    problem = ExactProblem("all_reduce", rank, ranks, 3000, torch.float32, CPU)
    exchange = backend_exchange(problem, None)
    exchange.fill()
    exchange.run()
    if rank == faulty:
        exchange.result[1717] += 1
    wrong = count_wrong(exchange.result, problem.expected())
    dist.destroy_process_group()
    return wrong


def test_one_wrong_element_on_one_rank_is_found_there() -> None:
    assert in_a_group(3, wrong_with_a_fault, 3, 1) == [0, 1, 0]


@pytest.mark.parametrize("ranks", [2, 7, 33, 300, 1000])
@pytest.mark.parametrize("dtype", DTYPES.values())
def test_every_sum_is_exact_in_its_type(ranks: int, dtype: torch.dtype) -> None:
    problem = ExactProblem("all_reduce", 0, ranks, 1021, dtype, CPU)
    contributions = [problem.contribution(rank).long() for rank in range(ranks)]
    total = torch.stack(contributions).sum(0)
    assert int(total.max()) <= LARGEST_EXACT[dtype]
    assert torch.equal(problem.total_of_all().long(), total)
    assert all(int(each.max()) > 0 for each in contributions)


def test_neighbouring_chunks_differ() -> None:
    problem = ExactProblem("all_gather", 0, 4, 4 * 4096, torch.bfloat16, CPU)
    chunks = problem.contribution(2).chunk(16)
    assert all(not torch.equal(one, other) for i, one in enumerate(chunks) for other in chunks[i + 1 :])


@pytest.mark.parametrize(
    ("operation", "size", "elements"),
    [("all_reduce", 8, 2), ("all_reduce", 1, 1), ("all_gather", 8, 4), ("all_gather", 100, 24), ("scatter", 64, 16)],
)
def test_parts_are_equal_and_never_empty(operation: Operation, size: int, elements: int) -> None:
    assert element_count(operation, size, 4, torch.float32) == elements


def wrong_of_every_algorithm(rank: int, ranks: int, per_host: int) -> dict[str, int]:
    wrong = {}
    for operation in OPERATIONS:
        for algorithm in algorithms_for(operation, ranks, per_host):
            for size in (4, 1000, 2**20):
                total = element_count(operation, size, ranks, torch.float32)
                problem = ExactProblem(operation, rank, ranks, total, torch.float32, CPU)
                exchange = scheduled_exchange(problem, algorithm.schedule(operation, ranks, per_host), None)
                wrong[f"{algorithm.name} {operation} {size}"] = exchange.check() + exchange.check()
    dist.destroy_process_group()
    return wrong


@pytest.mark.parametrize(("ranks", "per_host"), [(2, 1), (3, 1), (4, 2)])
def test_every_algorithm_is_right_on_real_ranks(ranks: int, per_host: int) -> None:
    for wrong in in_a_group(ranks, wrong_of_every_algorithm, ranks, per_host):
        assert {name: count for name, count in wrong.items() if count} == {}
        assert len(wrong) >= 3 * (len(OPERATIONS) + 6)


def wrong_of_a_schedule_with_a_fault(rank: int, ranks: int) -> int:
    schedule = next(iter(algorithms_for("all_reduce", ranks))).schedule("all_reduce", ranks)
    faulty = schedule._replace(rounds=schedule.rounds[:-1])  # the last chunk is lost on its way to every rank
    problem = ExactProblem("all_reduce", rank, ranks, 3000, torch.float32, CPU)
    wrong = scheduled_exchange(problem, faulty, None).check()
    dist.destroy_process_group()
    return wrong


def test_a_lost_chunk_is_counted_element_by_element() -> None:
    assert all(900 < wrong <= 1000 for wrong in in_a_group(3, wrong_of_a_schedule_with_a_fault, 3))
