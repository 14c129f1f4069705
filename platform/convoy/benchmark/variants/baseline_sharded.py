"""The baseline of a model that one rank has no room for: the model of `transformers`, sharded by accelerate.

It is what its authors' documentation begins with: accelerate's FSDP plugin with the answers that `accelerate config`
proposes (each of the model's own blocks is a unit, weights are gathered again in the backward, no mixed precision),
attention as `transformers` chooses it, torch's AdamW, nothing compiled. Two things differ: it is version 2 of
FSDP, because torch has declared version 1 outdated, and activations are recomputed where the run recomputes them.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from accelerate import FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.fsdp import FSDPModule

from convoy.benchmark.variants.baseline import BaselineVariant, hf_model, plain_adamw
from convoy.config.run import RunConfig
from convoy.training.engines.accelerate import make_accelerator, process_left_alone
from convoy.training.engines.engine import Held
from convoy.training.optimizer import moments
from convoy.training.process_groups import Ranks


class ShardedBaselineVariant(BaselineVariant):
    """The baseline's loop around a model that accelerate shards."""

    def _build(self, config: RunConfig, ranks: Ranks) -> tuple[nn.Module, torch.optim.Optimizer]:
        model: Any = hf_model(config, ranks.device, attention="sdpa")
        self.parameters = sum(p.numel() for p in model.parameters())
        if config.train.activation_checkpointing != "none":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=sorted(model._no_split_modules),
            cpu_ram_efficient_loading=False,  # each rank has the weights that all cases begin with
        )
        with process_left_alone():
            accelerator = make_accelerator(plugin, config, cpu=ranks.device.type == "cpu")
            module, wrapped = accelerator.prepare(model, plain_adamw(model, config))
        return cast(nn.Module, module), cast(torch.optim.Optimizer, wrapped.optimizer)

    def _syncing(self, *, last: bool) -> AbstractContextManager[None]:
        # As `Accelerator.no_sync` does, which would ask for the process's state, and so make one.
        cast(FSDPModule, self._model).set_requires_gradient_sync(last)
        return nullcontext()

    def held(self) -> Held:
        return {"parameters": list(self._model.parameters()), "optimizer": list(moments(self._optimizer))}
