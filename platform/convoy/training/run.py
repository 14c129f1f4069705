"""A rank from its assignment to its end: connect, build, restore, train, and leave what remains."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from convoy.checkpoint.format import Progress
from convoy.config.run import RunConfig
from convoy.events.log import EventWriter
from convoy.events.types import Evaluated, WorkerReady
from convoy.gang.assignment import Assignment
from convoy.storage import Store, StoreUnavailable, open_store
from convoy.training.batches import Data
from convoy.training.clock import clock_for
from convoy.training.evaluate import evaluate
from convoy.training.exchange import Exchange, StopReason
from convoy.training.finish import finish
from convoy.training.loop import Training, train
from convoy.training.measure import environment, measure_matmul, memory_peak
from convoy.training.model import Trained, build_trained, model_built
from convoy.training.optimizer import check_all_trained
from convoy.training.ranks import Ranks, connect
from convoy.training.restore import restore
from convoy.training.saver import Saver
from convoy.training.step import Batch, Stepper

Phase = Literal["imported", "connected", "built", "restored", "first_step"]

FAILED_SECONDS = 10.0
"""The log gets so long after a failure, whose cause the agent waits for."""


def run_rank(assignment: Assignment, began: float) -> bool:
    """Do the whole task of one rank; True if all ranks agreed to stop before the last step.

    began: when its process started, by `time.perf_counter`. Raises TrainingFailedError, SupersededError, and what a
    user can mend as ConfigError, DataDamaged, CheckpointError or StoreUnavailable.
    """
    place, kept_in = assignment.place, assignment.config.checkpoint.store
    tiers = [open_store(uri, kept_in) for uri in assignment.tiers or [assignment.job_uri]]
    events = EventWriter(tiers[0], assignment.generation, place.node, place.rank)
    try:
        stopped = _run(assignment, tiers, Log(events, began))
    except BaseException:
        with contextlib.suppress(StoreUnavailable):  # never in place of the cause
            events.close(FAILED_SECONDS)
        raise
    events.close()
    return stopped is not None


@dataclass(frozen=True)
class Log:
    """Where a rank tells how far its start-up is."""

    events: EventWriter
    began: float

    def ready(self, phase: Phase) -> None:
        self.events.append(WorkerReady(phase=phase, seconds=self.seconds()))

    def seconds(self) -> float:
        """Since the process began."""
        return time.perf_counter() - self.began


def _run(assignment: Assignment, tiers: list[Store], log: Log) -> StopReason | None:
    config, events = assignment.config, log.events
    log.ready("imported")
    ranks = connect(assignment)
    log.ready("connected")
    events.append(environment(ranks, config.train.param_dtype))
    trained = build_trained(config, ranks, filled=assignment.parent is None)
    if ranks.first:
        events.append(model_built(config, trained.module))
    data = Data(config, assignment.root, assignment.data_id, assignment.fingerprint, ranks)
    log.ready("built")
    start = restore(assignment, ranks, trained, tiers, events)
    log.ready("restored")
    saver = Saver(assignment, ranks, trained, [tier.uri for tier in tiers], events, start.parent)
    patience = 0.0
    try:
        with data.steps_from(start.progress.step) as batches:
            training = _training(assignment, ranks, trained, data, saver, log, batches, start.progress)
            ended = train(training)
        # Who asked for the end may not wait for more than the commit.
        if training.stopped != "requested":
            finish(assignment, ranks, trained, data, events, ended.step, tiers, saver.newest_commit)
            patience = config.checkpoint.deadline_seconds
    finally:
        saver.close(patience)
    return training.stopped


def _training(
    assignment: Assignment,
    ranks: Ranks,
    trained: Trained,
    data: Data,
    saver: Saver,
    log: Log,
    batches: Iterator[Sequence[Batch]],
    progress: Progress,
) -> Training:
    config, clock = assignment.config, clock_for(ranks.device)
    stepper = Stepper(
        trained.fsdp,
        trained.optimizer,
        Exchange(ranks.control),
        clock,
        clip_norm=config.train.clip_norm,
        seed=config.train.seed,
    )
    return Training(
        config=config,
        first=ranks.first,
        batches=batches,
        stepper=stepper,
        evaluate=_evaluator(config, trained, data, ranks),
        saver=saver,
        events=log.events,
        clock=clock,
        elapsed=lambda: max(assignment.spent_seconds, progress.seconds) + log.seconds(),
        vote=_voter(assignment),
        after_first_step=lambda: _first_step(log, ranks, trained, config, saver),
        memory=lambda step: memory_peak(ranks, step),
        progress=progress,
    )


def _evaluator(config: RunConfig, trained: Trained, data: Data, ranks: Ranks) -> Callable[[int], Evaluated]:
    batches, token_bytes_v = data.validation(), data.token_bytes_v()
    return lambda step: evaluate(trained.fsdp, batches, step, token_bytes_v, ranks.control)


def _first_step(log: Log, ranks: Ranks, trained: Trained, config: RunConfig, saver: Saver) -> None:
    """What is made ready once the machine is warm, after the start-up that people wait for."""
    log.ready("first_step")
    check_all_trained(trained.module, trained.optimizer)
    seconds = config.train.matmul_peak_seconds
    if seconds:
        rate = measure_matmul(ranks, config.train.param_dtype, seconds)
        log.events.append(environment(ranks, config.train.param_dtype, rate))
    saver.start()


def _voter(assignment: Assignment) -> Callable[[float], StopReason | None]:
    """This rank's wish to stop. Budgets are judged by rank 0's clock alone; SIGTERM asks any rank to stop."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    budget, price = assignment.config.budget, assignment.usd_per_hour

    def vote(gang_seconds: float) -> StopReason | None:
        hours = gang_seconds / 3600
        if asked:
            return "requested"
        if assignment.place.rank != 0:
            return None
        if budget.max_hours is not None and hours >= budget.max_hours:
            return "max_hours"
        if budget.max_cost_usd is not None and price is not None and hours * price >= budget.max_cost_usd:
            return "max_cost_usd"
        return None

    return vote
