"""Weights of a model that is built, and its size."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from convoy.config.model import ModelConfig, TransformerConfig
from convoy.config.run import RunConfig
from convoy.job.events.registry import ModelBuilt
from convoy.model.build import build_model
from convoy.model.counts import flops_per_token, parameter_count
from convoy.model.flops import count_task_flops
from convoy.model.hf import read_hf_weights
from convoy.model.init import initialise_weights, load_full_weights
from convoy.model.transformer import Transformer
from convoy.parallel.fsdp import wrap_and_compile_blocks
from convoy.training.process_groups import Ranks


def build_whole_model(config: RunConfig, ranks: Ranks, *, with_weights: bool = True) -> nn.Module:
    """The model for a library that distributes it by itself: whole on every rank, recomputed and compiled as the run
    asks for. with_weights: False leaves a transformer's weights undefined."""
    train = config.train
    fused = train.attention == "fused"
    model = build_model(config.model, train.loss_chunk_tokens, seed=train.seed, fused_attention=fused)
    for _ in wrap_and_compile_blocks(model, train):
        pass
    materialise_weights(model, config, ranks.device, fill=with_weights)
    return model.to(ranks.device).train()


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


def model_built_event(
    config: RunConfig, parameters: int, own_bytes: int, sample: tuple[Any, int] | None = None
) -> ModelBuilt:
    """The event with the model's size. parameters: of the whole model. own_bytes: of this rank's weights. sample: of a
    user's dataset, a batch and its rows, by which FLOPs are counted."""
    shape, flops = config.model, None
    if isinstance(shape, TransformerConfig):
        flops = flops_per_token(shape, config.data.sequence_length)
    elif sample is not None:
        flops = count_task_flops(shape, *sample)
    return ModelBuilt(
        name=shape.name,
        parameters=parameters,
        flops_per_token=flops,
        unit="tokens" if config.data.build is None else config.data.unit,
        sharded_bytes=own_bytes,
    )


def own_weight_bytes(model: nn.Module) -> int:
    """Bytes of this rank's shards."""
    return sum((p.to_local() if isinstance(p, DTensor) else p).nbytes for p in model.parameters())


def whole_parameter_count(shape: ModelConfig, model: nn.Module) -> int:
    """Of the whole model, of which this rank may have a stage alone."""
    if isinstance(shape, TransformerConfig):
        return parameter_count(shape)
    return sum(p.numel() for p in model.parameters())
