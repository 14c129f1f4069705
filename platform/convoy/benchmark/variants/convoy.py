"""Convoy's own training step as a variant: a step of `training/loop.py` without its saves, on a clock whose marks a
profiler records.
"""

import tempfile
from collections.abc import Mapping
from typing import Any

from torch.profiler import record_function

from convoy.benchmark.variants.variant import Variant
from convoy.checkpoint.save.queue import StatusCounts
from convoy.config.run import RunConfig
from convoy.job.events.log import EventWriter
from convoy.storage import open_store
from convoy.training.data import TrainingData
from convoy.training.engines.build import build_engine
from convoy.training.engines.engine import Held
from convoy.training.loop import step_done_event
from convoy.training.measure.clock import Clock, StepPhase, clock_for
from convoy.training.optimizer import learning_rate
from convoy.training.process_groups import Ranks
from convoy.training.step import StepExchange, Stepper

MARK = "convoy:"
BEGIN, END, START = "begin", "end", "start"
"""Marks of where the profiled steps begin and end, and where each step starts. A mark of another name ends the part of
the step that it names."""


class MarkedClock:
    """A clock whose marks are in the trace too, while a profiler runs."""

    def __init__(self, clock: Clock) -> None:
        self.marking = False
        """A mark costs some microseconds, so steps that are timed have none."""
        self._clock = clock

    def start(self) -> None:
        if self.marking:
            set_mark(START)
        self._clock.start()

    def end_phase(self, phase: StepPhase) -> None:
        self._clock.end_phase(phase)
        if self.marking:
            set_mark(phase)

    def phase_seconds(self) -> dict[str, float]:
        return self._clock.phase_seconds()


def set_mark(name: str) -> None:
    """Put a mark into the trace of the profiler that runs."""
    with record_function(MARK + name):
        pass


class ConvoyVariant(Variant):
    """Prefetched batches, the exchange of decisions, forward and backward, clipping, the update, the step's event."""

    def __init__(self, name: str, config: RunConfig, ranks: Ranks, data: TrainingData) -> None:
        super().__init__(name)
        self._config = config
        self._engine = build_engine(config, ranks)
        self.parameters = self._engine.parameters
        self.clock = MarkedClock(clock_for(ranks.device))
        self._stepper = Stepper(
            self._engine,
            config.train.seed,
            config.parallel.ranks_per_sample,
            StepExchange(ranks.control, config.parallel.ranks_per_sample),
            self.clock,
            training_group=ranks.training_group,
        )
        self._batches = data.prefetch_from(0)
        self._data = data
        self._folder = tempfile.TemporaryDirectory(prefix="convoy-bench-events-")
        self._first = ranks.first
        self._events = EventWriter(open_store(self._folder.name), 1, ranks.place.node, ranks.place.rank)

    def step(self) -> None:
        config, done = self._config, len(self.losses)
        self.clock.start()
        batches = next(self._batches)
        self.clock.end_phase("data")
        lr = learning_rate(done, config.train.steps, config.optimizer, config.schedule)
        result = self._stepper(batches, done, lr, None, self._save_status())
        self._record_step(result.loss, result.tokens)
        if self._first and (done + 1) % config.train.log_every_steps == 0:
            self._events.append(step_done_event(result, done + 1, lr, self.clock.phase_seconds()))
        self._after_exchange(result.save_status)

    def _save_status(self) -> StatusCounts:
        """The status of a saver that has no save under way."""
        return StatusCounts(reading_back=(0,), copying=(0,))

    def _after_exchange(self, sums: StatusCounts) -> None:
        """Do what follows from all ranks' status."""

    def parts(self) -> Mapping[str, float]:
        return dict(self.clock.phase_seconds())

    def example(self) -> tuple[Any, int] | None:
        return self._data.example()

    def held(self) -> Held:
        return self._engine.held()

    def close(self) -> None:
        self._batches.close()
        self._events.close()
        self._folder.cleanup()
