"""From a model's configuration to a module with the loop's one contract: inputs in, summed loss out."""

import torch

from convoy.config.model import CustomModelConfig, TransformerConfig
from convoy.model.custom import CustomModel, CustomTask, CustomTokenModel, build_module
from convoy.model.transformer import Transformer


def build_model(
    config: TransformerConfig | CustomModelConfig,
    loss_chunk_tokens: int = 0,
    device: torch.device | str = "meta",
    seed: int = 0,
    *,
    fused_attention: bool = True,
) -> Transformer | CustomModel:
    """The model of `config`, not yet sharded.

    A transformer is made on `device`; on meta its weights are still to come (`convoy.model.init`). A
    custom module is always made on CPU, with weights, under `torch.manual_seed(seed)`, so that all ranks
    hold the same ones. Raises ConfigError when a custom module cannot be built.
    """
    if isinstance(config, CustomModelConfig):
        module = build_module(config, seed)
        if config.task == "module":
            return CustomTask(config, module)
        return CustomTokenModel(config, module, loss_chunk_tokens)
    with torch.device(device):
        return Transformer(config, loss_chunk_tokens, fused_attention=fused_attention)
