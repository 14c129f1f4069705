"""torch's DistributedDataParallel: the whole model on every rank, computed in bf16 by autocast."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from convoy.benchmark.variants.peer import whole_model
from convoy.benchmark.variants.variant import Held, moments
from convoy.config.run import RunConfig
from convoy.parallel.fsdp import DTYPES
from convoy.training.optimizer import adamw, set_learning_rate
from convoy.training.process_groups import Ranks
from convoy.training.step import Batch


class TorchDdp:
    """Gradients are views of the buckets in which they are reduced, which saves their copies."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        model = whole_model(config, ranks)
        self.parameters = sum(p.numel() for p in model.parameters())
        self._model = DistributedDataParallel(
            model,
            device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
            process_group=ranks.everyone,
            gradient_as_bucket_view=True,
        )
        self._optimizer = adamw(model, config.optimizer)
        self._clip_norm = config.train.clip_norm
        self._device = ranks.device.type
        self._dtype = DTYPES[config.train.param_dtype]

    def forward_backward(self, batch: Batch, scale: Callable[[], float], *, last: bool) -> torch.Tensor:
        with nullcontext() if last else self._model.no_sync():
            with torch.autocast(self._device, self._dtype, enabled=self._dtype != torch.float32):
                loss: torch.Tensor = self._model(batch.tokens_bs, batch.targets_bs, batch.documents_bs)
            (loss * scale()).backward()
        return loss.detach()

    def update(self, lr: float) -> None:
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm, foreach=True)
        set_learning_rate(self._optimizer, lr)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def held(self) -> Held:
        parameters = list(self._model.parameters())
        # The buckets of which gradients are views persist: as large as these.
        buckets = [p for p in parameters if p.requires_grad]
        return {"parameters": parameters, "optimizer": list(moments(self._optimizer)), "gradients": buckets}
