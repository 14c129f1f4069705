"""DeepSpeed's ZeRO as a variant."""

from collections.abc import Callable, Iterator

import torch

from convoy.benchmark.variants.variant import Held, moments
from convoy.config.run import RunConfig
from convoy.training.batch import Batch
from convoy.training.engines.deepspeed import DeepSpeedEngine
from convoy.training.process_groups import Ranks


class DeepSpeedZero:
    """The engine's library as it is alone: it computes the norm of gradients itself."""

    def __init__(self, config: RunConfig, ranks: Ranks, stage: int) -> None:
        self._engine = DeepSpeedEngine(config, ranks, {"zero_optimization": {"stage": stage}})
        self.parameters = self._engine.parameters

    def forward_backward(self, batch: Batch, scale: Callable[[], float], *, last: bool) -> torch.Tensor:
        return self._engine.forward_backward(batch, scale, last=last)

    def update(self, lr: float) -> None:
        self._engine.update(lr, 0.0)

    def held(self) -> Held:
        zero = self._engine.zero
        whole = list(self._engine.module.parameters())
        parameters = [*whole, *(p.ds_tensor for p in whole if hasattr(p, "ds_tensor"))]
        memory = {tensor.untyped_storage().data_ptr() for tensor in parameters}
        updated = [p for group in zero.param_groups for p in group["params"]]
        # In fp32, stage 3 updates the shards themselves.
        masters = [p for p in updated if p.untyped_storage().data_ptr() not in memory]
        return {
            "parameters": parameters,
            "optimizer": [*masters, *moments(self._engine.optimizer)],
            "gradients": list(self._gradients()),
        }

    def _gradients(self) -> Iterator[torch.Tensor]:
        """Stage 3 keeps this rank's part of them, and a bucket for those that are reduced next, filled or not."""
        part = getattr(self._engine.zero, "grad_partitions_flat_buffer", None)
        buckets = (bucket.buffer for bucket in self._engine.zero.ipg_buckets.values())
        yield from (buffer for buffer in (part, *buckets) if isinstance(buffer, torch.Tensor))
