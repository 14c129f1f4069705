"""Timing in turns: all ranks get the slowest rank's times, and the same number of blocks."""

import time

import torch
import torch.distributed as dist

from convoy.network.timing import Meeting, OperationTimes, time_in_turns
from tests.network.meetings import meet
from tests.ranks import in_a_group


def timed(rank: int, ranks: int) -> tuple[dict[str, OperationTimes], list[str]]:
    meeting = meet(rank, ["a"] * ranks)
    order: list[str] = []

    def quick() -> None:
        order.append("quick")
        time.sleep(0.001)

    def slow_on_rank_1() -> None:
        order.append("slow")
        time.sleep(0.008 if rank == 1 else 0.001)

    times = time_in_turns({"quick": quick, "slow": slow_on_rank_1}, meeting, 4, block_seconds=0.004)
    dist.destroy_process_group()
    return times, order


def test_every_rank_gets_the_slowest_ranks_times_and_its_name() -> None:
    (first, order), (second, _) = in_a_group(2, timed, 2)
    assert {name: each._replace(own=()) for name, each in first.items()} == {
        name: each._replace(own=()) for name, each in second.items()
    }
    assert max(first["slow"].own_block_medians) < 0.008 <= min(second["slow"].own_block_medians)
    assert len(first["slow"].blocks) == 4
    assert all(each >= 0.008 for each in first["slow"].blocks)
    assert min(first["quick"].blocks) < min(first["slow"].blocks)
    assert first["slow"].worst_rank == 1
    assert len(first["quick"].operations) % 4 == 0
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert turns == ["quick", "slow", "quick", "slow", "quick", "slow", "quick"]  # calibrated, then AB BA AB BA


def test_a_few_long_operations_hardly_change_the_median_of_a_block() -> None:
    times = OperationTimes(
        blocks=(2.2, 1.0), operations=(1.0, 1.0, 1.0, 1.0, 7.0, 1.0, 1.0, 1.0, 1.0, 1.0), worst_rank=0
    )
    assert times.block_medians == (1.0, 1.0)
    assert OperationTimes(blocks=(2.0, 3.0), operations=(1.0, 3.0, 2.0, 4.0), worst_rank=0).block_medians == (2.0, 3.0)


def test_hosts_are_represented_by_their_first_ranks() -> None:
    meeting = Meeting(0, 4, dist.ProcessGroup(0, 4), torch.device("cpu"), ("a", "a", "b", "b"))
    assert meeting.host_ranks == (0, 2)
