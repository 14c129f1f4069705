"""The executor of schedules, on small schedules written by hand: what arrives, from whom, and in which order."""

import pytest
import torch
import torch.distributed as dist

from convoy.network.collectives.schedule import Schedule, Transfer
from convoy.network.collectives.schedule_runner import ScheduleRunner, layout_of
from tests.ranks import in_a_group

SWAP = Schedule(2, 2, ((Transfer(0, 1, (0, 1), "copy"), Transfer(1, 0, (0, 1), "copy")),))
"""Both send what the other overwrites in the same round."""

ADD_THEN_COPY = Schedule(
    3,
    2,
    (
        (Transfer(0, 1, (0,), "add"), Transfer(1, 2, (0,), "add")),  # 2 gets what 1 had before 0 added to it
        (Transfer(1, 2, (0, 1), "copy"),),
        (Transfer(2, 0, (1,), "add"),),
    ),
)

LENGTHS = [2, 6, 4 * 2**16]
"""Elements: of one to a chunk, of three, and so many that each chunk is cut in two pieces."""


def run(rank: int, schedule: Schedule, length: int, parts: int) -> list[list[float]]:
    """First and last element of each chunk on this rank; chunk c of rank r begins with 10 r + c + 1 everywhere."""
    buffer = torch.cat([torch.full((length // schedule.chunks,), 10.0 * rank + c + 1) for c in range(schedule.chunks)])
    layout = layout_of(length, schedule.chunks, 4, parts=parts)
    if parts == 1 and len(layout) > 1:  # chunks of a piece are apart from those of the other
        for piece in layout:
            for c, where in enumerate(piece):
                buffer[where] = 10.0 * rank + c + 1
    ScheduleRunner(schedule, rank, buffer, layout, None).run()
    chunks = [torch.cat([buffer[piece[c]] for piece in layout]) for c in range(schedule.chunks)]
    dist.destroy_process_group()
    return [sorted({float(each) for each in chunk}) for chunk in chunks]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("parts", [1, 2])
def test_a_round_reads_what_the_rounds_before_it_left(length: int, parts: int) -> None:
    assert in_a_group(2, run, SWAP, length, parts) == [[[11.0], [12.0]], [[1.0], [2.0]]]


@pytest.mark.parametrize("length", LENGTHS)
def test_chunks_are_added_and_copied_where_they_belong(length: int) -> None:
    ranks = in_a_group(3, run, ADD_THEN_COPY, length, 1)
    assert ranks[1] == [[1.0 + 11.0], [12.0]]
    assert ranks[2] == [[12.0], [12.0]]
    assert ranks[0] == [[1.0], [2.0 + 12.0]]


def test_large_chunks_are_cut_in_two_pieces_that_cover_the_buffer() -> None:
    for parts in (1, 2):
        layout = layout_of(2**18, 2, 4, parts=parts)
        assert len(layout) == 2
        elements = [i for piece in layout for where in piece for i in range(where.start, where.stop)]
        assert sorted(elements) == list(range(2**18))
    assert len(layout_of(2**10, 2, 4)) == 1
