"""DeepSpeed's ZeRO as a variant."""

from collections.abc import Callable

import torch

from convoy.config.run import RunConfig
from convoy.training.batch import Batch
from convoy.training.engines.deepspeed import DeepSpeedEngine
from convoy.training.engines.engine import Held
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
        return self._engine.held()
