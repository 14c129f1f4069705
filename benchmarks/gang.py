"""A gang of ranks, each with the product's own training loop."""

import multiprocessing
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from convoy.gang.workers.worker import shared_environment

os.environ |= shared_environment(1)  # for the ranks, which are spawned

import torch.distributed as dist

from convoy.checkpoint.format import Progress
from convoy.config.run import RunConfig, config_hash
from convoy.data.manifest import data_fingerprint
from convoy.data.prepare import prepare_dataset
from convoy.gang.task import Assignment, RankPosition
from convoy.gang.workers.board import Marker
from convoy.gang.workers.processes import signal_at_end_of_parent
from convoy.job.events.log import EventWriter
from convoy.job.generations import form_generation
from convoy.storage import open_store
from convoy.training.batches import RankData
from convoy.training.checkpointing.saver import Saver
from convoy.training.engines.convoy import ConvoyEngine, build_convoy_engine
from convoy.training.loop import Training, log_step, run_step
from convoy.training.measure.clock import OwnTime, UnknownOwnTime, clock_for, own_time_for
from convoy.training.measure.machine import memory_peak
from convoy.training.process_groups import Ranks, connect_ranks
from convoy.training.step import StepExchange, Stepper

RANKS = 2

Body = Callable[[Assignment, Ranks, RankData], Any]
"""What each rank does; its result must be picklable, and so must it itself: it is called in a new process."""


def on_gang(config: RunConfig, body: Body, world_size: int = RANKS) -> list[Any]:
    """The result of `body` on each rank, over gloo or NCCL, for the first generation of a job below `config.root`."""
    manifest = prepare_dataset(config.data, open_store(str(config.root)))
    job = open_store(f"{config.root}/benchmark")
    formed = form_generation(
        job, formation="benchmark", nodes=1, world_size=world_size, config_hash=config_hash(config), rendezvous=""
    )
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    workers, readers = [], []
    for rank in range(world_size):
        assignment = Assignment(
            config=config,
            job="benchmark",
            job_uri=job.uri,
            tiers=[job.uri],
            root=str(config.root),
            data_id=manifest.id,
            fingerprint=data_fingerprint(manifest, config.data),
            generation=formed.generation,
            parent=None,
            place=RankPosition(
                rank=rank,
                local_rank=rank,
                node=0,
                nodes=1,
                nproc_per_node=world_size,
                host_rank=rank,
                host_ranks=world_size,
                threads=1,
            ),
            master_host="127.0.0.1",
            master_port=port,
            reason_path="/dev/null",
        )
        reader, writer = context.Pipe(duplex=False)
        workers.append(context.Process(target=_rank, args=(assignment, body, writer)))
        readers.append(reader)
        workers[-1].start()
        writer.close()  # the rank has its own: the reader sees the end of the rank
    try:
        results = [reader.recv() for reader in readers]
    except EOFError:
        raise RuntimeError("a rank ended without a result") from None
    for worker in workers:
        worker.join()
    return results


def training(
    assignment: Assignment,
    ranks: Ranks,
    batches: Any,
    marker: Marker | None = None,
    own_time: OwnTime | UnknownOwnTime | None = None,
    trained: ConvoyEngine | None = None,
) -> Training:
    """The product's loop. marker: of a board. trained: the model; None: one of its own."""
    config, store = assignment.config, open_store(assignment.job_uri)
    trained = trained or build_convoy_engine(config, ranks)
    marker = marker or Marker(None, 0)
    clock, began = clock_for(ranks.device, marker.mark_shared_point), time.perf_counter()
    exchange = StepExchange(ranks.control)
    stepper = Stepper(trained, config.train.seed, config.parallel.ranks_per_sample, exchange, clock)
    events = EventWriter(store, assignment.generation, 0, ranks.place.rank)
    saver = Saver(assignment, ranks, trained, assignment.tiers, events, None, marker)
    return Training(
        config=config,
        first=ranks.first,
        batches=batches,
        stepper=stepper,
        evaluate=lambda *_: (_ for _ in ()).throw(AssertionError("not part of a step")),
        saver=saver,
        events=events,
        clock=clock,
        elapsed=lambda: time.perf_counter() - began,
        vote=lambda _: None,
        after_first_step=saver.start_writer,
        memory=lambda step: memory_peak(ranks, step),
        progress=Progress(),
        marker=marker,
        own_time=own_time or own_time_for(ranks.device),
    )


def one_step_of(t: Training) -> None:
    """A step as `convoy.training.loop.train` takes it, logging included, but for saves and evaluations."""
    result, lr = run_step(t)
    t.saver.settle(result.save_status, t.progress.step)
    log_step(t, result, lr)


def _rank(assignment: Assignment, body: Body, result: Connection) -> None:
    signal_at_end_of_parent(signal.SIGKILL)  # or it would wait in a collective for ever, and keep a core busy
    parent = multiprocessing.parent_process()
    if parent is None or os.getppid() != parent.pid:
        os._exit(1)  # it ended while this process started
    try:
        ranks = connect_ranks(assignment)
        data = RankData(assignment.config, assignment.root, assignment.data_id, assignment.fingerprint, ranks)
        result.send(body(assignment, ranks, data))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # its threads would hold it up; the other ranks see their connections to it break
