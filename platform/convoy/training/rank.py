"""A rank from its assignment to its end: connect, build, restore, train, and leave what remains."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from convoy.checkpoint.format import Progress
from convoy.config.run import RunConfig
from convoy.gang.task import Assignment
from convoy.gang.workers.board import Marker, OrderKind, heartbeat
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import Evaluated, WorkerReady
from convoy.model.custom import CustomModel
from convoy.network.nccl.proof import NetworkWatch, read_own_log
from convoy.parallel.gloo import exchange_shards
from convoy.storage import Store, StoreUnavailable, open_store
from convoy.training.batch import Batch
from convoy.training.build import model_built_event
from convoy.training.checkpointing.restore import restore_newest_commit
from convoy.training.checkpointing.saver import Saver
from convoy.training.data import TrainingData, open_data
from convoy.training.engines.build import build_engine
from convoy.training.engines.engine import Engine
from convoy.training.export import sample_and_export
from convoy.training.loop import Evaluator, Training, train
from convoy.training.measure.clock import clock_for, own_time_for
from convoy.training.measure.health_check import check_node
from convoy.training.measure.machine import environment, measure_matmul, memory_peak
from convoy.training.measure.machine_probe import probe_machine
from convoy.training.measure.network_proof import prove_network
from convoy.training.module_buffers import ModuleBuffers
from convoy.training.optimizer import check_all_updated
from convoy.training.process_groups import Ranks, connect_ranks
from convoy.training.step import URGENT_REASONS, StepExchange, Stepper, StopReason, UrgentStop, Vote, evaluate

StartPhase = Literal["imported", "connected", "built", "restored", "first_step"]

WAITS_IN = frozenset(f.__code__ for f in (StepExchange.finish, UrgentStop.finish, exchange_shards))
"""Functions outside of torch in which a rank waits for others: by it agents distinguish slow from waiting ranks."""

ORDERS: dict[OrderKind, Vote | None] = {
    "none": None,
    "save_and_end": "preempted",
    "end": "preempted_unsaved",
    "save": "save",
}
"""This rank's vote for each order of its agent."""

FAILED_SECONDS = 10.0
"""For the log to be written after a failure, whose cause the agent waits for."""


def run_rank(assignment: Assignment, began: float) -> StopReason | None:
    """Do the whole task of one rank; why all ranks agreed to stop before the last step, or None.

    began: when its process started, by `time.perf_counter`. Raises TrainingFailedError, SupersededError,
    NodeUnfitError, and what a user can mend as ConfigError, DataDamaged, CheckpointError or StoreUnavailable.
    """
    place, store_config = assignment.place, assignment.config.checkpoint.store
    tiers = [open_store(uri, store_config) for uri in assignment.tiers or [assignment.job_uri]]
    events = EventWriter(tiers[0], assignment.generation, place.node, place.rank, requests=True)
    marker = Marker(assignment.board_path, place.local_rank)
    try:
        with heartbeat(marker, WAITS_IN) if assignment.board_path is not None else contextlib.nullcontext():
            stopped = _start_and_train(assignment, tiers, StartLog(events, began), marker)
    except BaseException:
        marker.enter("leave")
        with contextlib.suppress(StoreUnavailable):  # never in place of the cause
            events.close(FAILED_SECONDS)
        raise
    events.close()
    return stopped


@dataclass(frozen=True)
class StartLog:
    """Logs the progress of a rank's start."""

    events: EventWriter
    began: float

    def log_ready(self, phase: StartPhase) -> None:
        self.events.append(WorkerReady(phase=phase, seconds=self.elapsed_seconds()))

    def elapsed_seconds(self) -> float:
        """Since the process began."""
        return time.perf_counter() - self.began


def _start_and_train(assignment: Assignment, tiers: list[Store], log: StartLog, marker: Marker) -> StopReason | None:
    config, events = assignment.config, log.events
    log.log_ready("imported")
    marker.enter("connect")
    watch = NetworkWatch.begin() if torch.cuda.device_count() else None
    ranks = connect_ranks(assignment)
    log.log_ready("connected")
    marker.enter("build")
    events.append(environment(ranks, config.train.param_dtype, engine=config.engine))
    if assignment.check_node:
        check_node(ranks, config.train.param_dtype, config.train.node_check_seconds, events)
    engine = build_engine(config, ranks, with_weights=assignment.parent is None)
    data = open_data(config, assignment.root, assignment.data_id, assignment.fingerprint, ranks)
    assignment = assignment.model_copy(update={"fingerprint": data.fingerprint})
    # A user's functions may wait for all ranks: all make the module again by which its FLOPs are counted.
    built = model_built_event(config, engine.parameters, engine.weight_bytes(), data.example())
    if ranks.first:
        events.append(built)
    log.log_ready("built")
    if assignment.parent is not None:  # one that restores nothing would say nothing about how long it takes
        marker.enter("restore")
    start = restore_newest_commit(assignment, ranks, engine, data, tiers, events)
    log.log_ready("restored")
    marker.enter("first_step", start.progress.step)
    position = data.position if data.has_position else None
    saver = Saver(assignment, ranks, engine, [tier.uri for tier in tiers], events, start.parent, marker, position)
    patience = 0.0
    try:
        with data.prefetch_from(start.progress.step) as batches:
            training = _make_training(
                assignment, ranks, engine, data, saver, log, batches, start.progress, marker, watch
            )
            ended = train(training)
        marker.enter("finish")
        if training.stopped not in URGENT_REASONS:
            sample_and_export(assignment, ranks, engine, data, events, ended.step, tiers, saver.newest_commit)
            patience = config.checkpoint.deadline_seconds
    except BaseException:
        marker.enter("leave")
        raise
    finally:
        saver.close(patience)
    return training.stopped


def _make_training(
    assignment: Assignment,
    ranks: Ranks,
    engine: Engine,
    data: TrainingData,
    saver: Saver,
    log: StartLog,
    batches: Iterator[Sequence[Batch]],
    progress: Progress,
    marker: Marker,
    watch: NetworkWatch | None,
) -> Training:
    config, clock = assignment.config, clock_for(ranks.device, marker.mark_shared_point)
    buffers = ModuleBuffers(engine.module, ranks.training_group) if isinstance(engine.module, CustomModel) else None
    exchange, advance = StepExchange(ranks.control, config.parallel.ranks_per_sample), marker.mark_own_progress
    stepper = Stepper(
        engine, config.train.seed, config.parallel.ranks_per_sample, exchange, clock, buffers=buffers, advance=advance
    )
    return Training(
        config=config,
        first=ranks.first,
        batches=batches,
        stepper=stepper,
        evaluate=_make_evaluator(engine, data, ranks, marker, buffers),
        saver=saver,
        events=log.events,
        clock=clock,
        elapsed=lambda: max(assignment.spent_seconds, progress.seconds) + log.elapsed_seconds(),
        vote=_install_voter(assignment, marker),
        after_first_step=lambda: _finish_start(
            log, ranks, engine, config, saver, watch, new_job=assignment.parent is None
        ),
        memory=lambda step: memory_peak(ranks, step),
        progress=progress,
        marker=marker,
        own_time=own_time_for(ranks.device),
    )


def _make_evaluator(
    engine: Engine, data: TrainingData, ranks: Ranks, marker: Marker, buffers: ModuleBuffers | None
) -> Evaluator:
    batches, token_bytes_v = data.validation_batches(), data.token_bytes_v()

    def evaluate_held_out(step: int, is_urgent: Callable[[], bool]) -> Evaluated | None:
        if not batches:
            return None
        measured = evaluate(engine, ranks, batches, token_bytes_v, step, marker.mark_shared_point, is_urgent)
        if buffers is not None:
            buffers.put_back()
        return measured

    return evaluate_held_out


def _finish_start(
    log: StartLog,
    ranks: Ranks,
    engine: Engine,
    config: RunConfig,
    saver: Saver,
    watch: NetworkWatch | None,
    *,
    new_job: bool,
) -> None:
    """What is made ready once the machine is warm, after the start-up that people wait for. new_job: the job goes on
    from nothing."""
    log.log_ready("first_step")
    check_all_updated(engine.not_updated())
    if watch is not None and ranks.across_hosts:
        required = config.cluster.require_network
        prove_network(ranks, required, read_own_log(), watch.adapter_bytes(), log.events.append)
    seconds = config.train.matmul_peak_seconds
    if seconds:
        rate = measure_matmul(ranks, config.train.param_dtype, seconds)
        # A resumed job's machine is known, or another one: what the first start measured stays with its plan.
        machine = probe_machine(config, ranks, seconds) if new_job else None
        log.events.append(environment(ranks, config.train.param_dtype, rate, machine))
    saver.start_writer()


def _install_voter(assignment: Assignment, marker: Marker) -> Callable[[float], Vote | None]:
    """This rank's wish to stop or to save. Budgets are judged by rank 0's clock alone; any rank's agent may order an
    end or a save, and SIGTERM asks any rank to stop."""
    terminations: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: terminations.append(number))
    budget, price = assignment.config.budget, assignment.usd_per_hour

    def vote(gang_seconds: float) -> Vote | None:
        hours = gang_seconds / 3600
        ordered = ORDERS[marker.current_order().kind]
        if ordered in URGENT_REASONS:
            return ordered
        if terminations:
            return "requested"
        if assignment.place.rank != 0:
            return ordered
        if budget.max_hours is not None and hours >= budget.max_hours:
            return "max_hours"
        if budget.max_cost_usd is not None and price is not None and hours * price >= budget.max_cost_usd:
            return "max_cost_usd"
        return ordered

    return vote
