"""Convoy's own engine: FSDP2, tensor and pipeline parallelism, and torch's AdamW."""

import math
from collections.abc import Callable, Mapping
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.config.train import TrainConfig
from convoy.model.block import RowOrder
from convoy.model.build import build_model
from convoy.model.init import row_orders
from convoy.parallel.fsdp import DTYPES, parallelize, shard_device
from convoy.parallel.pipeline import Pipeline
from convoy.training.batch import Batch
from convoy.training.build import materialise_weights, whole_parameter_count
from convoy.training.engines.engine import Fsdp2Engine, clip_scale
from convoy.training.optimizer import build_optimizer, set_learning_rate
from convoy.training.process_groups import Ranks


class ConvoyEngine(Fsdp2Engine):
    """A model that FSDP2 shards, and the optimizer of its shards."""

    def __init__(
        self,
        fsdp: FSDPModule,
        optimizer: torch.optim.Optimizer,
        train: TrainConfig,
        parallel: ParallelConfig,
        *,
        parameters: int | None = None,
        rows: Mapping[str, RowOrder] | None = None,
        pipeline: Pipeline | None = None,
        training_group: dist.ProcessGroup | None = None,
    ) -> None:
        """parameters: of the whole model; None: all are here. rows: order in memory of the rows of weights that are cut
        by heads, by name. training_group: the ranks that train together; None: the default group."""
        self._fsdp = fsdp
        self.module = cast(nn.Module, fsdp)
        self._forward: Callable[..., torch.Tensor] = self.module
        self.optimizer = optimizer
        self.pipeline = pipeline
        self.parameters = sum(p.numel() for p in self.module.parameters()) if parameters is None else parameters
        self.rows = rows or {}
        self._clip_norm = train.clip_norm
        self._reduce_every_pass = parallel.reduce_every_pass
        self._training_group = training_group
        self._parameters = [p for p in self.module.parameters() if p.requires_grad]

    def forward_backward(self, batch: Batch, scale: Callable[[], float], *, last: bool) -> torch.Tensor:
        self._set_gradient_sync(last=last)
        loss = self._forward(*batch.inputs)
        (loss * scale()).backward()
        return loss.detach()

    def _set_gradient_sync(self, *, last: bool) -> None:
        """Between replicas (HSDP) gradients cross once per step; within a sharding group, as configured."""
        if self._reduce_every_pass:
            self._fsdp.set_requires_all_reduce(last)
        else:
            self._fsdp.set_requires_gradient_sync(last)
        self._fsdp.set_is_last_backward(last)

    @torch.no_grad()  # or each gradient's own part would be an operation of autograd's
    def grad_norm(self, sums: torch.Tensor, own_part_done: Callable[[], None]) -> float:
        """One all-reduce over all ranks gives all the same bits, which one after the other along each dimension of a
        mesh need not."""
        grads: dict[int, list[torch.Tensor]] = {}
        for parameter in self._parameters:
            if parameter.grad is not None:
                grads.setdefault(_ranks_per_element(parameter), []).append(_own_shard(parameter.grad))
        total = torch.zeros((), dtype=torch.float64, device=self._parameters[0].device)
        for count, some in grads.items():
            total += get_total_norm(some, foreach=True).double() ** 2 / count
        own_part_done()
        together = torch.cat([sums, total.reshape(1)])
        dist.all_reduce(together, group=self._training_group)
        sums.copy_(together[:-1])
        return float(together[-1].sqrt())

    @torch.no_grad()
    def update(self, lr: float, norm: float, factor: float = 1.0) -> None:
        scale = clip_scale(norm, self._clip_norm, factor)
        if scale is not None:
            # Through DTensor's dispatch each would take longer than its product.
            own = [_own_shard(p.grad) for p in self._parameters if p.grad is not None]
            if own:
                torch._foreach_mul_(own, scale)
        set_learning_rate(self.optimizer, lr)
        self.optimizer.step()

    def drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)


def build_convoy_engine(config: RunConfig, ranks: Ranks, *, with_weights: bool = True) -> ConvoyEngine:
    """Weights are the same on any number of ranks: keyed by seed and name, or read from a folder.

    with_weights: False leaves a transformer's weights undefined, for a checkpoint to fill. Raises ConfigError if
    `model.init_from` or `model.build` cannot give the model.
    """
    train = config.train
    fused = train.attention == "fused"
    model = build_model(config.model, train.loss_chunk_tokens, seed=train.seed, fused_attention=fused)
    fsdp = parallelize(model, ranks.mesh, config.parallel, train, across_hosts=ranks.across_hosts)
    materialise_weights(model, config, shard_device(ranks.device, config.parallel), fill=with_weights)
    pipeline = None
    if config.parallel.pipeline > 1:
        pipeline = Pipeline(model, ranks.mesh["pipeline"], DTYPES[train.param_dtype])
    return ConvoyEngine(
        fsdp,
        build_optimizer(model, config.optimizer),
        train,
        config.parallel,
        parameters=whole_parameter_count(config.model, model),
        rows=row_orders(model),
        pipeline=pipeline,
        training_group=ranks.training_group,
    )


def _own_shard(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor  # that of `layout` imports too much


def _ranks_per_element(parameter: torch.Tensor) -> int:
    """How many ranks hold each element."""
    if not isinstance(parameter, DTensor):
        return 1
    mesh = parameter.device_mesh
    return math.prod(mesh.size(i) for i, placed in enumerate(parameter.placements) if placed.is_replicate())
