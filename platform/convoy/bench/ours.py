"""Convoy's own training step as a variant: what `training/loop.py` makes of a step, but for its log and its saves."""

from collections.abc import Mapping

from convoy.bench.held import held_bytes, training_state
from convoy.bench.profiled import MarkedClock
from convoy.checkpoint.queue import Standing
from convoy.config.run import RunConfig
from convoy.training.batches import Data
from convoy.training.clock import clock_for
from convoy.training.exchange import Exchange
from convoy.training.model import build_trained
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
        self.clock = MarkedClock(clock_for(ranks.device))
        self._stepper = Stepper(
            self._trained.fsdp,
            self._trained.optimizer,
            Exchange(ranks.control),
            self.clock,
            clip_norm=config.train.clip_norm,
            seed=config.train.seed,
            everyone=ranks.everyone,
        )
        self._batches = data.steps_from(0)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self._trained.module.parameters())

    @property
    def held_bytes(self) -> int:
        """Of this rank's weights and optimizer state."""
        return held_bytes(training_state(self._trained.module.parameters(), self._trained.optimizer))

    def step(self) -> None:
        config, done = self._config, len(self.losses)
        self.clock.start()
        batches = next(self._batches)
        self.clock.mark("data")
        lr = learning_rate(done, config.train.steps, config.optimizer, config.schedule)
        none_saved = Standing(reading_back=(0,), copying=(0,))
        self.losses.append(self._stepper(batches, done, lr, None, none_saved).loss)

    def parts(self) -> Mapping[str, float]:
        return dict(self.clock.read())

    def close(self) -> None:
        self._batches.close()
