"""Messages between pairs of ranks: all arrive, all are timed, and a byte that is wrong is counted."""

import pytest
import torch
import torch.distributed as dist

from convoy.network.pairs import plan
from convoy.network.pairs.measure import Buffers, TaskCall, measure_pairs, pattern
from convoy.network.pairs.plan import PAIR_KINDS, PairTask, TaskTimes
from convoy.network.timing import Meeting
from tests.ranks import in_a_group

CPU = torch.device("cpu")


def measured(rank: int, hosts: tuple[str, ...], largest: int, alone: int = 8) -> tuple[dict[PairTask, TaskTimes], int]:
    meeting = Meeting(rank, len(hosts), dist.new_group(backend="gloo"), CPU, hosts)
    blocks: list[None] = []
    plan.MOST_HOSTS_ALONE = alone
    times = measure_pairs(meeting, None, largest, 3, block_seconds=0.0, progress=lambda: blocks.append(None))
    del meeting
    dist.destroy_process_group()
    return times, len(blocks)


@pytest.mark.parametrize(
    ("hosts", "largest"), [(("a", "a", "b", "b"), 2**15), (("a", "b", "c"), 5), (("a", "a"), 2**10)]
)
def test_every_task_is_timed_and_all_bytes_are_right(hosts: tuple[str, ...], largest: int) -> None:
    results = in_a_group(len(hosts), measured, hosts, largest)
    times, blocks = results[0]
    assert all(result == results[0] for result in results)
    assert {task.kind for task in times} == set(PAIR_KINDS)
    assert max(task.size for task in times) == largest
    assert all(len(each.blocks) == 3 and min(each.blocks) > 0 and each.wrong == 0 for each in times.values())
    assert blocks == 3 * len(times)


def test_pairs_that_are_measured_at_once_have_times_of_their_own() -> None:
    hosts = ("a", "b", "c", "d", "e")
    (times, blocks), *others = in_a_group(len(hosts), measured, hosts, 2**10, 4)
    assert all(result == (times, blocks) for result in others)
    (alone, blocks_alone), *_ = in_a_group(len(hosts), measured, hosts, 2**10)
    assert set(times) == set(alone)
    assert blocks < 0.6 * blocks_alone
    trips = [each.blocks for task, each in times.items() if task.kind == "half round trip" and task.size == 8]
    assert len(set(trips)) == 10


def wrong_bytes(rank: int, task: PairTask, faulty: int) -> int:
    longest = task.size * task.messages
    buffers = Buffers(
        pattern(rank, longest), torch.zeros(longest, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    )
    if rank == faulty:
        buffers.sent[1717] += 1
    call = TaskCall(task, rank, buffers, None)
    wrong = call.check() + call.check()
    dist.barrier()  # none leaves, and so closes its connections, while another one waits
    dist.destroy_process_group()
    return wrong


@pytest.mark.parametrize(
    ("task", "faulty", "wrong"),
    [
        (PairTask("one way", ((2, 0),), 1000, 64), 2, [2, 0, 0]),
        (PairTask("one way", ((2, 0),), 1000, 64), 0, [0, 0, 0]),  # it sends nothing but the answer
        (PairTask("both ways", ((0, 2),), 1000, 64, both=True), 0, [0, 0, 2]),
        (PairTask("half round trip", ((1, 2),), 2000), 2, [0, 2, 0]),
        (PairTask("half round trip", ((1, 2),), 2000), 1, [0, 0, 2]),
    ],
)
def test_one_wrong_byte_is_counted_by_its_receiver(task: PairTask, faulty: int, wrong: list[int]) -> None:
    assert in_a_group(3, wrong_bytes, task, faulty) == wrong


def test_patterns_of_ranks_and_messages_differ() -> None:
    patterns = [pattern(rank, 64 * 2**16) for rank in range(8)]
    assert all(not torch.equal(one, other) for i, one in enumerate(patterns) for other in patterns[i + 1 :])
    messages = patterns[3].split(2**16)
    assert all(not torch.equal(one, other) for i, one in enumerate(messages) for other in messages[i + 1 :])
    assert int(patterns[0].min()) > 0
