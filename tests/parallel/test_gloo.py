"""What is exchanged over gloo: shards in the order of ranks; what is added up depends on that order alone."""

import itertools
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from convoy.parallel.gloo import AllGather, ReduceScatter
from convoy.training.process_groups import is_lost_peer
from tests.ranks import KILLED, in_a_group
from tests.training.job import tiny
from tests.training.sharded import alone, sharded_model

LENGTH = 5


def the_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def gradient(rank: int, world: int, dtype: torch.dtype) -> torch.Tensor:
    """Of sizes so different that the order in which they are added shows."""
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn(world * LENGTH, generator=generator) * 1000.0 ** (rank % 3)).to(dtype)


def both(rank: int, world: int, dtype: torch.dtype) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """By operation: ours and gloo's, and the input as it is afterwards."""
    group = the_group()
    found = {}
    for op, across in itertools.product((dist.ReduceOp.SUM, dist.ReduceOp.AVG), (False, True)):
        given = gradient(rank, world, dtype)
        ours, theirs = torch.empty(LENGTH, dtype=dtype), torch.empty(LENGTH, dtype=dtype)
        ReduceScatter(across_hosts=across)(ours, given, group, op)
        assert torch.equal(given, gradient(rank, world, dtype))
        dist.reduce_scatter_single(theirs, given, op=op, group=group)
        found[f"{op} {across}"] = ours, theirs
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_shards_are_added_in_the_order_of_ranks(world: int, dtype: torch.dtype) -> None:
    answers = in_a_group(world, both, world, dtype)
    gradients = [gradient(rank, world, dtype) for rank in range(world)]
    total = gradients[0].clone()
    for each in gradients[1:]:
        total += each
    for rank, found in enumerate(answers):
        shard = slice(rank * LENGTH, (rank + 1) * LENGTH)
        sum_, mean = total[shard], total[shard] / world
        for (ours, theirs), expected in zip(found.values(), (sum_, sum_, mean, mean), strict=True):
            assert torch.equal(ours, expected)
            if world == 2:
                assert torch.equal(ours, theirs)
            torch.testing.assert_close(ours, theirs, rtol=0.02, atol=1e-3 * float(total.abs().max()))


def gathered(rank: int, world: int) -> list[torch.Tensor]:
    """From a shard of its own, and from one that is a part of the output already."""
    group = the_group()
    shard = gradient(rank, 1, torch.bfloat16)
    apart, within = torch.empty(world * LENGTH, dtype=shard.dtype), torch.empty(world * LENGTH, dtype=shard.dtype)
    AllGather()(apart, shard, group)
    own = within[rank * LENGTH : (rank + 1) * LENGTH]
    own.copy_(shard)
    AllGather()(within, own, group)
    return [apart, within]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_each_rank_has_the_shards_of_all_in_the_order_of_ranks(world: int) -> None:
    expected = torch.cat([gradient(rank, 1, torch.bfloat16) for rank in range(world)])
    for found in in_a_group(world, gathered, world):
        assert all(torch.equal(each, expected) for each in found)


def without_the_last(rank: int, world: int, across_hosts: bool) -> bool:
    """Whether the others are told that a rank is gone, and know the error as such."""
    group = the_group()
    exchange, output = ReduceScatter(across_hosts=across_hosts), torch.empty(LENGTH)
    exchange(output, gradient(rank, world, torch.float32), group, dist.ReduceOp.SUM)
    if rank == world - 1:
        os._exit(1)
    try:
        for _ in range(3):  # what the lost rank sent before may still be underway
            exchange(output, gradient(rank, world, torch.float32), group, dist.ReduceOp.SUM)
    except RuntimeError as error:
        return is_lost_peer(error)
    return False


@pytest.mark.parametrize("across_hosts", [False, True])
def test_a_lost_rank_is_an_error_on_all_others(across_hosts: bool) -> None:
    answers = in_a_group(3, without_the_last, 3, across_hosts, may_die=True)
    assert answers == [True, True, KILLED]


def test_a_gather_that_nobody_waits_for_is_refused() -> None:
    group: Any = None
    with pytest.raises(ValueError, match="must be waited for"):
        AllGather()(torch.empty(2), torch.empty(1), group, async_op=True)


@pytest.mark.parametrize(("op", "async_op"), [(dist.ReduceOp.MAX, False), (dist.ReduceOp.SUM, True)])
def test_what_it_cannot_do_is_refused(op: Any, async_op: bool) -> None:
    group: Any = None
    with pytest.raises(ValueError, match="must be SUM or AVG, and waited for"):
        ReduceScatter()(torch.empty(1), torch.empty(2), group, op, async_op)


@alone
@pytest.mark.parametrize("across_hosts", [False, True])
@pytest.mark.parametrize("wrap", ["block", "linear"])
def test_every_sharded_part_of_a_model_on_cpus_exchanges_so(wrap: str, across_hosts: bool) -> None:
    model = sharded_model(tiny(parallel={"wrap": wrap}), across_hosts=across_hosts)
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    assert len(parts) >= 3
    for part in parts:
        for group in part._get_fsdp_state()._fsdp_param_groups:
            assert isinstance(group._reduce_scatter_comm, ReduceScatter)
            assert isinstance(group._all_gather_comm, AllGather) is across_hosts
