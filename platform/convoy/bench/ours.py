"""Convoy's own training step as a variant: what `training/loop.py` makes of a step, but for its log and its saves."""

from collections.abc import Mapping

from convoy.checkpoint.queue import Standing
from convoy.config.run import RunConfig
from convoy.training.batches import Data
from convoy.training.clock import clock_for
from convoy.training.exchange import Exchange
from convoy.training.model import build_trained, parameters_of
from convoy.training.optimizer import learning_rate
from convoy.training.ranks import Ranks
from convoy.training.step import Stepper


class Ours:
    """Prefetched batches, the exchange of decisions, forward and backward, clipping, the update."""

    def __init__(self, name: str, config: RunConfig, ranks: Ranks, data: Data) -> None:
        self.name = name
        self.losses: list[float] = []
        """Of all steps so far."""
        self._config = config
        self._trained = build_trained(config, ranks)
        self._clock = clock_for(ranks.device)
        self._stepper = Stepper(
            self._trained.fsdp,
            self._trained.optimizer,
            Exchange(ranks.control, ranks.shared_by),
            self._clock,
            clip_norm=config.train.clip_norm,
            seed=config.train.seed,
            everyone=ranks.everyone,
            shared_by=ranks.shared_by,
            pipeline=self._trained.pipeline,
        )
        self._batches = data.steps_from(0)

    @property
    def parameters(self) -> int:
        return parameters_of(self._config.model, self._trained.module)

    def step(self) -> None:
        config, done = self._config, len(self.losses)
        self._clock.start()
        batches = next(self._batches)
        self._clock.mark("data")
        lr = learning_rate(done, config.train.steps, config.optimizer, config.schedule)
        none_saved = Standing(reading_back=(0,), copying=(0,))
        self.losses.append(self._stepper(batches, done, lr, None, none_saved).loss)

    def parts(self) -> Mapping[str, float]:
        return dict(self._clock.read())

    def close(self) -> None:
        self._batches.close()
