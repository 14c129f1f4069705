"""Weights of a model that is built, and its size."""

from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from convoy.config.model import ModelConfig, TransformerConfig
from convoy.config.run import RunConfig
from convoy.job.events.registry import ModelBuilt
from convoy.model.counts import flops_per_token, parameter_count
from convoy.model.hf import read_hf_weights
from convoy.model.init import initialise_weights, load_full_weights
from convoy.model.transformer import Transformer


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
