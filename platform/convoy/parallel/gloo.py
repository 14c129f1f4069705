"""Weights and gradients over gloo, whose own collectives take up to twice as long as what is sent.

Its reduce-scatter moves twice the bytes that are needed. And gloo sends data once it knows that it is waited for, but
its all-gather and all-to-all begin to send before they ask for theirs: where ranks come at different times, the later
one's question waits behind its data, and the two directions of a link are used one after the other (two hosts on a link
of 100 Mbit/s, 1.8 MB to reduce: 150 ms, and 75 ms if all is requested first). On one host that is no matter, and the
calls that it takes to ask cost more than it spares: a step of the default model, two ranks with a core each, would take
10 % longer.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule


class _BufferAllocator:
    """Of FSDP2's, but for what it does."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer, as FSDP2 asks for it."""
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(_BufferAllocator):
    """An all-gather for FSDP2, of `torch.distributed.fsdp`'s AllGather: each rank sends its shard to all others, across
    hosts."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        """output_tensor: (n,), of all ranks in their order. input_tensor: (n / ranks,), this rank's, which may be its
        part of the output. Raises ValueError if it is not to be waited for, RuntimeError if a rank is gone."""
        if async_op:
            raise ValueError("asynchronously: must be waited for")
        exchange_shards([input_tensor] * group.size(), output_tensor.chunk(group.size()), group)


class ReduceScatter(_BufferAllocator):
    """A reduce-scatter for FSDP2, of `torch.distributed.fsdp`'s ReduceScatter: each rank is sent its shard by all
    others, and adds them itself.

    On one host it takes about half the time (two ranks, 445,000 elements in fp32: 0.9 ms against 1.6; 3 and 4 ranks
    alike), and the memory of a second gradient of the module. Shards are added in the order of ranks, so that the
    result depends on nothing else; on two ranks it is gloo's own, bit for bit.
    """

    def __init__(self, *, across_hosts: bool = False) -> None:
        self._across_hosts = across_hosts

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """output_tensor: (n / ranks,), this rank's sum or mean of input_tensor: (n,).

        Raises ValueError for another operation, RuntimeError if a rank is gone.
        """
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG) or async_op:
            raise ValueError(f"{op}{', asynchronously' if async_op else ''}: must be SUM or AVG, and waited for")
        received = torch.empty_like(input_tensor)
        if self._across_hosts:
            exchange_shards(input_tensor.chunk(group.size()), received.chunk(group.size()), group)
        else:
            dist.all_to_all_single(received, input_tensor, group=group)
        first, *others = received.chunk(group.size())
        output_tensor.copy_(first)
        for shard in others:
            output_tensor.add_(shard)
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(group.size())


def exchange_shards(sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """sent, received: to and from each rank of the group. All is requested before anything is sent."""
    ranks, own = group.size(), group.rank()
    others = [(own + away) % ranks for away in range(1, ranks)]
    pending = [dist.irecv(received[rank], group=group, group_src=rank) for rank in reversed(others)]
    pending += [dist.isend(sent[rank], group=group, group_dst=rank) for rank in others]
    if received[own].data_ptr() != sent[own].data_ptr():
        received[own].copy_(sent[own])
    for work in pending:
        assert work is not None  # this rank is one of the group
        work.wait()


def set_cpu_collectives(model: nn.Module, *, across_hosts: bool) -> None:
    """Have each sharded part of a model on CPUs reduce its gradients so, and across hosts gather its weights."""
    gather: Any = AllGather()
    exchange: Any = ReduceScatter(across_hosts=across_hosts)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(exchange)
            if across_hosts:
                module.set_custom_all_gather(gather)
