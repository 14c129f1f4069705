"""Weights and gradients over gloo, whose own collectives take up to twice as long as what is sent.

gloo sends data once it knows that it is waited for. Its all-gather and all-to-all ask for theirs after they have begun to
send: where ranks come at different times, the later one's question waits behind its data, and the two directions of a
link are used one after the other (two ranks on a link of 100 Mbit/s, 1.8 MB: 150 ms, and 75 ms as here). Its
reduce-scatter moves twice the bytes that are needed.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule


class _Comm:
    """Of FSDP2's, but for what it does."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer, as FSDP2 asks for it."""
        return torch.empty(*size, dtype=dtype, device=device)


class Gather(_Comm):
    """An all-gather for FSDP2, of `torch.distributed.fsdp`'s AllGather: each rank sends its shard to all others."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        """output_tensor: (n,), of all ranks in their order. input_tensor: (n / ranks,), this rank's, which may be its
        part of the output. Raises ValueError if it is not to be waited for, RuntimeError if a rank is gone."""
        if async_op:
            raise ValueError("asynchronously: must be waited for")
        parts = list(output_tensor.chunk(group.size()))
        own = parts[group.rank()]
        if own.data_ptr() != input_tensor.data_ptr():
            own.copy_(input_tensor)
        _exchange([input_tensor] * group.size(), parts, group)


class ExchangeAndAdd(_Comm):
    """A reduce-scatter for FSDP2, of `torch.distributed.fsdp`'s ReduceScatter: each rank is sent its shard by all
    others, and adds them itself.

    It takes the memory of a second gradient of the module. Shards are added in the order of ranks, so that the result
    depends on nothing else; on two ranks it is gloo's own, bit for bit.
    """

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
        sent = list(input_tensor.chunk(group.size()))
        received = [torch.empty_like(part) for part in sent]
        received[group.rank()] = sent[group.rank()]
        _exchange(sent, received, group)
        first, *others = received
        output_tensor.copy_(first)
        for shard in others:
            output_tensor.add_(shard)
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(group.size())


def _exchange(sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """sent, received: to and from each rank of the group; this rank's own are left alone. All is asked for before
    anything is sent."""
    ranks, own = group.size(), group.rank()
    others = [(own + away) % ranks for away in range(1, ranks)]
    pending = [dist.irecv(received[rank], group=group, group_src=rank) for rank in reversed(others)]
    pending += [dist.isend(sent[rank], group=group, group_dst=rank) for rank in others]
    for work in pending:
        assert work is not None  # this rank is one of the group
        work.wait()


def exchange_on_cpus(model: nn.Module) -> None:
    """Have each sharded part of a model on CPUs gather its weights and reduce its gradients so."""
    gather: Any = Gather()
    exchange: Any = ExchangeAndAdd()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(gather)
            module.set_custom_reduce_scatter(exchange)
