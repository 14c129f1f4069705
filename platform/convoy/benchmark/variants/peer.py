"""Another library's step as a variant: our model, data, loss, weights and schedule; its sharding and its update."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn

from convoy.benchmark.measure.memory_footprint import Kept
from convoy.benchmark.variants.held import held_bytes
from convoy.config.run import RunConfig
from convoy.model.build import build_model
from convoy.parallel.fsdp import prepared_blocks
from convoy.training.batches import Data
from convoy.training.build import materialise
from convoy.training.optimizer import learning_rate
from convoy.training.process_groups import Ranks
from convoy.training.step import Batch, seed_randomness


class Engine(Protocol):
    """What a library makes of a model."""

    parameters: int
    """Of the whole model."""

    def passed(self, batch: Batch, scale: Callable[[], float], *, last: bool) -> torch.Tensor:
        """Forward and backward of one micro batch: its summed loss, a scalar.

        scale: tells, once the forward is on its way, what the loss is multiplied with before its backward; the library
        averages gradients over ranks. last: of the step's micro batches, after which gradients must be reduced.
        """

    def update(self, lr: float) -> None:
        """Clip, update at this rate, and forget the gradients."""

    def held(self) -> Kept:
        """Of this rank, between steps; memory that several tensors share once."""


class Peer:
    """A step around an engine: nothing in it but what each library needs to compute the same as all others."""

    def __init__(self, name: str, config: RunConfig, ranks: Ranks, data: Data, engine: Engine) -> None:
        self.name = name
        self.losses: list[float] = []
        self.parameters = engine.parameters
        self._config = config
        self._counted = 0
        self._ranks = ranks
        self._engine = engine
        self._batches = data.steps_from(0)

    @property
    def held_bytes(self) -> int:
        """Of this rank's weights and optimizer state."""
        held = self._engine.held()
        return held_bytes((*held["parameters"], *held["optimizer"]))

    @property
    def tokens_per_step(self) -> int:
        """Targets that count, of all ranks: the mean over the steps so far."""
        return round(self._counted / len(self.losses))

    def step(self) -> None:
        config, done = self._config, len(self.losses)
        batches = next(self._batches)
        tokens = self._tokens(batches)
        loss_sum = torch.zeros((), device=self._ranks.device)
        for i, batch in enumerate(batches):
            seed_randomness(config.train.seed, done, batch.index, batch.tokens_bs.device)
            # Engines average gradients over ranks; the loss is to be the mean over the global batch's tokens.
            loss_sum += self._engine.passed(
                batch, lambda: self._ranks.place.world_size / tokens(), last=i == len(batches) - 1
            )
        reduction = dist.all_reduce(loss_sum, group=self._ranks.everyone, async_op=True)
        self._engine.update(learning_rate(done, config.train.steps, config.optimizer, config.schedule))
        assert reduction is not None
        reduction.wait()
        self.losses.append(float(loss_sum) / tokens())
        self._counted += tokens()

    def _tokens(self, batches: Sequence[Batch]) -> Callable[[], int]:
        """Of all ranks; asked for now, and waited for when they are needed."""
        count = torch.tensor(sum(batch.weight for batch in batches))
        work = dist.all_reduce(count, group=self._ranks.control, async_op=True)

        def told() -> int:
            assert work is not None
            work.wait()
            return max(1, int(count))

        return told

    def parts(self) -> Mapping[str, float]:
        return {}

    def held(self) -> Kept:
        return self._engine.held()

    def close(self) -> None:
        self._batches.close()


def whole_model(config: RunConfig, ranks: Ranks) -> nn.Module:
    """Our model with the weights that it begins with, not spread; recomputed and compiled as the run asks for."""
    train = config.train
    fused = train.attention == "fused"
    model = build_model(config.model, train.loss_chunk_tokens, seed=train.seed, fused_attention=fused)
    for _ in prepared_blocks(model, train):
        pass
    materialise(model, config, ranks.device)
    return model.to(ranks.device).train()
