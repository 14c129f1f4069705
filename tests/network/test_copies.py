"""Copies between memories, here all of the host's; a GPU's is only another one."""

from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from convoy.network.copies import COPIES, Copy, CopyCall, NoGpuError, measure_copies, time_copies
from convoy.network.timing import Meeting
from tests.ranks import in_a_group

SIZES = (64, 100_000)

PLANTED = Copy("pinned", "GPU to host")


def meeting(rank: int, ranks: int) -> Meeting:
    group = dist.group.WORLD
    assert group is not None
    return Meeting(rank, ranks, group, torch.device("cpu"), ("a",) * ranks)


def timed(rank: int, ranks: int) -> dict[Copy, dict[int, tuple[int, int]]]:
    """Blocks and wrong bytes of each; on rank 1, one byte of one kind of copy is changed on its way."""
    pageable, pinned, other = (torch.empty(max(SIZES), dtype=torch.uint8) for _ in range(3))
    run = CopyCall.run

    def changing(call: CopyCall) -> None:
        run(call)
        if call.source.data_ptr() == other.data_ptr() and call.target.data_ptr() == pinned.data_ptr():
            call.target[len(call.target) // 2] += 1

    with patch.object(CopyCall, "run", changing if rank == 1 else run):
        found = time_copies({"pageable": pageable, "pinned": pinned}, other, meeting(rank, ranks), SIZES, 6)
    dist.destroy_process_group()
    return {
        copy: {size: (len(e.times.blocks), e.wrong) for size, e in by_size.items()} for copy, by_size in found.items()
    }


def test_every_kind_is_timed_at_every_size_and_a_changed_byte_is_counted_on_all_ranks() -> None:
    first, second = in_a_group(2, timed, 2)
    assert first == second
    assert set(first) == set(COPIES)
    for copy, by_size in first.items():
        wrong = 2 if copy == PLANTED else 0  # checked before and after
        assert by_size == dict.fromkeys(SIZES, (6, wrong))


def refused(rank: int, ranks: int) -> str:
    with pytest.raises(NoGpuError) as raised:
        measure_copies(meeting(rank, ranks), SIZES, 6)
    dist.destroy_process_group()
    return str(raised.value)


def test_without_a_gpu_nothing_is_measured() -> None:
    assert in_a_group(1, refused, 1) == ["there is no GPU"]
