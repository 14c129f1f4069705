"""Devices, and telling a lost peer from a cause."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from convoy.config.errors import ConfigError
from convoy.training.process_groups import choose_device, lost_peer
from tests.ranks import KILLED, on_ranks
from tests.training.job import place


def test_without_gpus_the_cpu_computes() -> None:
    assert choose_device(place(1, 2), gpus=0) == torch.device("cpu")


def test_nodes_that_share_a_host_take_different_gpus() -> None:
    devices = [choose_device(place(rank, 4, nproc_per_node=2), gpus=4) for rank in range(4)]
    assert devices == [torch.device("cuda", i) for i in range(4)]


def test_too_few_gpus_are_told_by_every_rank() -> None:
    for rank in range(2):
        with pytest.raises(ConfigError, match="2 ranks on this host, which has 1 GPUs"):
            choose_device(place(rank, 2), gpus=1)


def _reduce_without_rank_1(rank: int, path: str) -> bool:
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=3)
    dist.barrier()
    if rank == 1:
        os._exit(1)
    try:
        dist.all_reduce(torch.ones(1000))
    except RuntimeError as error:
        return lost_peer(error)
    return False


def test_a_collective_without_its_peer_fails_as_such(tmp_path: Path) -> None:
    found = on_ranks(3, _reduce_without_rank_1, str(tmp_path / "store"), may_die=True)

    assert found[1] is KILLED
    assert (found[0], found[2]) == (True, True)


@pytest.mark.parametrize("error", [RuntimeError("size mismatch"), ValueError("Broken pipe"), KeyError("x")])
def test_other_errors_are_causes(error: Exception) -> None:
    assert not lost_peer(error)
