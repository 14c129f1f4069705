"""accelerate's FSDP2 as a variant."""

from collections.abc import Callable

import torch

from convoy.config.run import RunConfig
from convoy.training.batch import Batch
from convoy.training.engines.accelerate import AccelerateEngine
from convoy.training.engines.engine import Held
from convoy.training.process_groups import Ranks


class AccelerateFsdp2:
    """The engine's library as it is alone: it clips by its own function."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        self._engine = AccelerateEngine(config, ranks)
        self.parameters = self._engine.parameters
        self._clip_norm = config.train.clip_norm

    def forward_backward(self, batch: Batch, scale: Callable[[], float], *, last: bool) -> torch.Tensor:
        return self._engine.forward_backward(batch, scale, last=last)

    def update(self, lr: float) -> None:
        if self._clip_norm is not None:
            self._engine.accelerator.clip_grad_norm_(self._engine.module.parameters(), self._clip_norm)
        self._engine.step(lr)
        self._engine.drop_gradients()

    def held(self) -> Held:
        return self._engine.held()
