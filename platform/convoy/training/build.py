"""The model as it trains: built, spread, filled with weights, with its optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from convoy.config.model import ModelConfig, TransformerConfig
from convoy.config.run import RunConfig
from convoy.job.events.registry import ModelBuilt
from convoy.model.block import RowOrder
from convoy.model.build import build_model
from convoy.model.counts import flops_per_token, parameter_count
from convoy.model.hf import read_hf_weights
from convoy.model.init import initialise_weights, load_full_weights, row_orders
from convoy.model.transformer import Transformer
from convoy.parallel.fsdp import DTYPES, parallelize, shard_device
from convoy.parallel.pipeline import Pipeline
from convoy.training.optimizer import build_optimizer
from convoy.training.process_groups import Ranks


@dataclass(frozen=True)
class ShardedModel:
    """A sharded model and the optimizer of its shards."""

    fsdp: FSDPModule
    optimizer: torch.optim.Optimizer
    rows: Mapping[str, RowOrder] = field(default_factory=dict)
    """Order in memory of the rows of weights that are cut by heads, by name."""
    pipeline: Pipeline | None = None
    """How batches go through the stages; None: the whole model is here, or its shards."""

    @property
    def module(self) -> nn.Module:
        return cast(nn.Module, self.fsdp)


def build_sharded_model(config: RunConfig, ranks: Ranks, *, with_weights: bool = True) -> ShardedModel:
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
    return ShardedModel(fsdp, build_optimizer(model, config.optimizer), row_orders(model), pipeline)


def materialise_weights(model: nn.Module, config: RunConfig, device: torch.device, *, fill: bool = True) -> None:
    """Give a transformer on the meta device its weights, sharded or not; a custom model has them already.

    fill: False leaves them undefined. Raises ConfigError if `model.init_from` cannot give them.
    """
    if not isinstance(model, Transformer) or not isinstance(config.model, TransformerConfig):
        return
    model.to_empty(device=device)
    if fill and config.model.init_from is None:
        initialise_weights(model, config.train.seed)
    elif fill and config.model.init_from is not None:
        load_full_weights(model, read_hf_weights(Path(config.model.init_from), config.model))


def model_built_event(config: RunConfig, model: nn.Module) -> ModelBuilt:
    """The event with the model's size."""
    shape, length = config.model, config.data.sequence_length
    return ModelBuilt(
        name=shape.name,
        parameters=whole_parameter_count(shape, model),
        flops_per_token=flops_per_token(shape, length) if isinstance(shape, TransformerConfig) else None,
        sharded_bytes=sum((p.to_local() if isinstance(p, DTensor) else p).nbytes for p in model.parameters()),
    )


def whole_parameter_count(shape: ModelConfig, model: nn.Module) -> int:
    """Of the whole model, of which this rank may have a stage alone."""
    if isinstance(shape, TransformerConfig):
        return parameter_count(shape)
    return sum(p.numel() for p in model.parameters())
