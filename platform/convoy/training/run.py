"""A rank from its assignment to its end: connect, build, restore, train, and leave what remains."""

import signal
import time
from collections.abc import Callable

import torch.distributed as dist

from convoy.config.run import RunConfig
from convoy.events.log import EventWriter
from convoy.events.types import Evaluated, WorkerReady
from convoy.gang.assignment import Assignment
from convoy.storage import open_store
from convoy.training.batches import Data
from convoy.training.clock import clock_for
from convoy.training.evaluate import evaluate
from convoy.training.exchange import Exchange, StopReason
from convoy.training.finish import finish
from convoy.training.loop import Training, train
from convoy.training.measure import environment, measure_matmul
from convoy.training.model import Trained, build_trained, model_built
from convoy.training.ranks import Ranks, connect
from convoy.training.saver import Saver
from convoy.training.step import Stepper


def run_rank(assignment: Assignment, began: float) -> None:
    """Do the whole task of one rank. began: when its process started, by `time.perf_counter`."""
    store, config = open_store(assignment.job_uri), assignment.config
    place = assignment.place
    events = EventWriter(store, assignment.generation, place.node, place.rank)

    def ready(phase: str) -> None:
        events.append(WorkerReady.model_validate({"phase": phase, "seconds": time.perf_counter() - began}))

    ready("imported")
    try:
        ranks = connect(assignment)
        ready("connected")
        events.append(environment(ranks, config.train.param_dtype))
        trained = build_trained(config, ranks)
        if ranks.first:
            events.append(model_built(config, trained.module))
        data = Data(config, assignment.root, assignment.data_id, assignment.fingerprint, ranks)
        ready("built")
        saver = Saver(store, assignment, ranks, trained)
        progress, restored = saver.restore()
        if restored is not None and ranks.first:
            events.append(restored)
        ready("restored")
        with data.steps_from(progress.step) as batches:
            clock, exchange = clock_for(ranks.device), Exchange(ranks.control)
            training = Training(
                config=config,
                first=ranks.first,
                batches=batches,
                stepper=Stepper(
                    trained.fsdp,
                    trained.optimizer,
                    exchange,
                    clock,
                    clip_norm=config.train.clip_norm,
                    seed=config.train.seed,
                ),
                evaluate=_evaluator(config, trained, data, ranks),
                saver=saver,
                events=events,
                clock=clock,
                elapsed=lambda: progress.seconds + time.perf_counter() - began,
                vote=_voter(assignment),
                after_first_step=lambda: _first_step(ready, events, ranks, config),
                progress=progress,
            )
            ended = train(training)
        finish(assignment, ranks, trained, data, events, ended)
        dist.barrier(group=ranks.control)
    finally:
        events.close()


def _evaluator(config: RunConfig, trained: Trained, data: Data, ranks: Ranks) -> Callable[[int], Evaluated]:
    batches, token_bytes_v = data.validation(), data.token_bytes_v()
    return lambda step: evaluate(trained.fsdp, batches, step, token_bytes_v, ranks.control)


def _first_step(ready: Callable[[str], None], events: EventWriter, ranks: Ranks, config: RunConfig) -> None:
    """The machine's matmul rate is measured once it is warm, and after the start-up that people wait for."""
    ready("first_step")
    seconds = config.train.matmul_peak_seconds
    if seconds:
        rate = measure_matmul(ranks, config.train.param_dtype, seconds)
        events.append(environment(ranks, config.train.param_dtype, rate))


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
