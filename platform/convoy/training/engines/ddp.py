"""`parallel.strategy: ddp` by torch's DistributedDataParallel: the whole model and optimizer on every rank."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.model.init import row_orders
from convoy.parallel.fsdp import DTYPES
from convoy.training.batch import Batch
from convoy.training.build import build_whole_model
from convoy.training.engines.engine import Held, TorchEngine, clip_scale
from convoy.training.optimizer import adamw, set_learning_rate
from convoy.training.process_groups import Ranks


class DdpEngine(TorchEngine):
    """In bf16 it computes by autocast, over fp32 weights. On CPUs gradients of three or more ranks, or in bf16, are
    added in the order of ranks."""

    def __init__(self, config: RunConfig, ranks: Ranks, *, with_weights: bool = True) -> None:
        """with_weights: False leaves a transformer's weights undefined, for a checkpoint to fill."""
        train = config.train
        self.module = build_whole_model(config, ranks, with_weights=with_weights)
        self.parameters = sum(p.numel() for p in self.module.parameters())
        self.rows = row_orders(self.module)
        if train.param_dtype == "bf16":  # also in an evaluation
            self.module.forward = torch.autocast(ranks.device.type, torch.bfloat16)(self.module.forward)
        self._ddp = DistributedDataParallel(
            self.module,
            device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
            process_group=ranks.training_group,
            broadcast_buffers=False,  # training/module_buffers.py does that, once per step
            gradient_as_bucket_view=True,
        )
        on_cpu, world_size = ranks.device.type == "cpu", dist.get_world_size(ranks.training_group)
        if config.parallel.adds_in_rank_order(world_size, train.reduce_dtype, on_cpu=on_cpu):
            reduction = _Reduction(ranks.training_group, DTYPES[train.reduce_dtype])
            self._ddp.register_comm_hook(reduction, _mean_in_rank_order)
        elif train.reduce_dtype == "bf16":
            self._ddp.register_comm_hook(ranks.training_group, bf16_compress_hook)
        self.optimizer = adamw(self.module, config.optimizer)
        self._clip_norm = train.clip_norm
        self._training_group = ranks.training_group
        self._is_first = float(dist.get_rank(ranks.training_group) == 0)

    def forward_backward(self, batch: Batch, scale: Callable[[], float], *, last: bool) -> torch.Tensor:
        with nullcontext() if last else self._ddp.no_sync():
            loss: torch.Tensor = self._ddp(*batch.inputs)
            (loss * scale()).backward()
        return loss.detach()

    @torch.no_grad()
    def grad_norm(self, sums: torch.Tensor, own_part_done: Callable[[], None]) -> float:
        """Norm of rank 0's gradients: on other hardware, other ranks might round differently. Raises ConfigError if a
        parameter has no gradient, because DDP then leaves those of its bucket as this rank computed them."""
        trained = [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]
        if missing := [name for name, p in trained if p.grad is None]:
            raise ConfigError(
                f"parallel.strategy = ddp: {missing[0]} has no gradient in this step; fsdp trains models that do not "
                "use every parameter in every step"
            )
        grads = [p.grad for _, p in trained if p.grad is not None]
        norm = get_total_norm(grads, foreach=True).double() * self._is_first
        own_part_done()
        together = torch.cat([sums, norm.reshape(1)])
        dist.all_reduce(together, group=self._training_group)
        sums.copy_(together[:-1])
        return float(together[-1])

    @torch.no_grad()
    def update(self, lr: float, norm: float, factor: float = 1.0) -> None:
        scale = clip_scale(norm, self._clip_norm, factor)
        if scale is not None:
            grads = [p.grad for p in self.module.parameters() if p.grad is not None]
            torch._foreach_mul_(grads, scale)
        set_learning_rate(self.optimizer, lr)
        self.optimizer.step()

    def drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def held(self) -> Held:
        """The buckets of which gradients are views persist, as large as these."""
        buckets = [p for p in self.module.parameters() if p.requires_grad]
        return {**super().held(), "gradients": buckets}

    def keep_gathered(self) -> None:
        """Nothing is sharded."""


class _Reduction(NamedTuple):
    """Over which ranks gradients are reduced, and in which type."""

    group: dist.ProcessGroup | None
    dtype: torch.dtype


def _mean_in_rank_order(reduction: _Reduction, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """As DDP's own all-reduce, but for the order (`ParallelConfig.adds_in_rank_order`)."""
    group, dtype = reduction
    own, ranks = bucket.buffer(), dist.get_world_size(group)
    gathered = own.new_empty(ranks * own.numel(), dtype=dtype)
    work = dist.all_gather_into_tensor(gathered, own.to(dtype), group=group, async_op=True)
    assert work is not None

    def mean(_: Future[list[torch.Tensor]]) -> torch.Tensor:
        first, *others = gathered.chunk(ranks)
        own.copy_(first)
        for other in others:
            own.add_(other)
        return own.div_(ranks)

    future: Future[torch.Tensor] = work.get_future().then(mean)
    return future
