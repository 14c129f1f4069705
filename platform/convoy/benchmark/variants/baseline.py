"""The frozen baseline that most people start from: the `transformers` model of the same shape, in fp32 with plain
attention and plain AdamW, eagerly, under DistributedDataParallel where there are several ranks.

It has the same initial weights and the same tokens, and is not slowed down in any way: it is what its authors wrote, in
the loop that their documentation shows.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from convoy.benchmark.variants.variant import Variant
from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.model.hf import to_hf_tensors
from convoy.model.hf_config import hf_config, hf_format
from convoy.model.init import initialise_weights
from convoy.model.transformer import Transformer
from convoy.training.data import TrainingData
from convoy.training.engines.engine import Held
from convoy.training.optimizer import learning_rate, moments, set_learning_rate
from convoy.training.process_groups import Ranks


class BaselineVariant(Variant):
    """A loop as one writes it by hand."""

    def __init__(self, name: str, config: RunConfig, ranks: Ranks, data: TrainingData) -> None:
        """Raises ConfigError for a model that `transformers` does not have."""
        super().__init__(name)
        self._config = config
        self._world_size = ranks.place.world_size
        self._training_group = ranks.training_group
        self._model, self._optimizer = self._build(config, ranks)
        self._batches = data.prefetch_from(0)

    def _build(self, config: RunConfig, ranks: Ranks) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model as the ranks train it, and what updates it; sets `parameters`."""
        model = hf_model(config, ranks.device)
        self.parameters = sum(p.numel() for p in model.parameters())
        optimizer = plain_adamw(model, config)
        if self._world_size == 1:
            return model, optimizer
        devices = [ranks.device] if ranks.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, process_group=ranks.training_group), optimizer

    def step(self) -> None:
        config, done = self._config, len(self.losses)
        batches = next(self._batches)
        total = torch.zeros((), device=batches[0].device)
        weights = torch.tensor(float(sum(batch.weight for batch in batches)), device=total.device)
        if self._world_size > 1:
            dist.all_reduce(weights, group=self._training_group)
        for i, batch in enumerate(batches):
            with self._syncing(last=i == len(batches) - 1):
                tokens_bs, targets_bs, _ = batch.inputs
                logits_bsv = self._model(tokens_bs).logits
                loss = F.cross_entropy(logits_bsv.flatten(0, 1), targets_bs.flatten(), reduction="sum")
                (loss * (self._world_size / float(weights))).backward()
            total += loss.detach()
        if config.train.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._model.parameters(), config.train.clip_norm)
        lr = learning_rate(done, config.train.steps, config.optimizer, config.schedule)
        set_learning_rate(self._optimizer, lr)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._world_size > 1:
            dist.all_reduce(total, group=self._training_group)
        self._record_step(float(total) / float(weights), round(float(weights)))

    def _syncing(self, *, last: bool) -> AbstractContextManager[None]:
        """In which a backward reduces gradients only if it is the last one of the step."""
        if isinstance(self._model, DistributedDataParallel) and not last:
            return self._model.no_sync()
        return nullcontext()

    def held(self) -> Held:
        parameters = list(self._model.parameters())
        # DistributedDataParallel keeps the buckets in which it reduces gradients: as large as these.
        buckets = [p for p in parameters if p.requires_grad] if self._world_size > 1 else []
        return {"parameters": parameters, "optimizer": list(moments(self._optimizer)), "gradients": buckets}

    def close(self) -> None:
        self._batches.close()


def plain_adamw(model: nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """torch's, as it is by default but for the run's figures."""
    optimizer = config.optimizer
    return torch.optim.AdamW(
        model.parameters(), lr=optimizer.lr, betas=optimizer.betas, eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
    )  # fmt: skip


def hf_model(config: RunConfig, device: torch.device, attention: str = "eager") -> nn.Module:
    """The model of `transformers` that computes the same, with the initial weights of Convoy's. attention: what
    `transformers` calls its implementation."""
    import transformers

    shape = config.model
    if not isinstance(shape, TransformerConfig):
        raise ConfigError(f"model.build = {shape.build}: the baseline is a model of transformers, which has none of it")
    settings = {**hf_config(shape, "float32"), "attn_implementation": attention, "use_cache": False}
    kind = settings.pop("model_type")
    made: Any = transformers.AutoConfig.for_model(kind, **settings)
    with torch.device(device):
        model = cast(nn.Module, transformers.AutoModelForCausalLM.from_config(made, attn_implementation=attention))
    with torch.device("cpu"):
        ours = Transformer(shape)
    initialise_weights(ours, config.train.seed, device)  # the weights of `build_convoy_engine`, which draws them there
    tensors = dict(to_hf_tensors(shape, ours.state_dict()))
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise AssertionError(f"{hf_format(shape).model_type}: missing {missing}, unexpected {unexpected}")
    return model.to(device).float().train()
