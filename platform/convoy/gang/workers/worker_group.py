"""This node's workers of one generation: starts, watches, orders and stops them, and logs it."""

import contextlib
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from convoy.config.run import training_hash
from convoy.gang.async_call import BackgroundCall, say
from convoy.gang.messages import Evidence, own_evidence
from convoy.gang.task import RESERVED, STOPPED, Assignment, Node, Task
from convoy.gang.workers.board import Board, Mark, OrderKind
from convoy.gang.workers.compile_cache import CompileCache
from convoy.gang.workers.exit_progress import ExitProgress
from convoy.gang.workers.prefork import Prefork
from convoy.gang.workers.worker import Worker, exit_event, exit_event_without_log
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import GangStopped, GenerationEnded, GenerationStarted, ScriptEndedLate, WorkerExited
from convoy.job.lineage import Generation
from convoy.job.rank_logs import log_name
from convoy.storage import Store, StoreUnavailable, is_shared
from convoy.storage.posix_files import as_outages

STOPPED_LOOKS = 4
"""A worker that this many looks in a row find stopped by a signal was not stopped for a moment only."""

TAIL_SECONDS = 0.5
"""For the last lines of a worker's log, which a hanging store would not return."""

CLOSE_SECONDS = 5.0
"""For the rest of the log to reach the storage when a generation is over: how it ended was flushed before."""


@dataclass(frozen=True)
class NodeContext:
    """What a node's agent has for all generations."""

    task: Task
    node: Node
    tiers: Sequence[Store]
    """The job's, the root first."""
    folder: Path
    """On this machine, for as long as the agent lives."""
    prefork: Prefork
    compiled: CompileCache

    @property
    def store(self) -> Store:
        return self.tiers[0]

    @property
    def is_remote(self) -> bool:
        """The root takes no growing files: what workers print is written here, and uploaded
        (`gang/workers/worker.py`)."""
        return is_shared(self.store.uri)

    def worker_log(self, generation: int, rank: int) -> Path:
        """The file that a worker prints to."""
        return (self.folder if self.is_remote else Path(self.store.uri)) / log_name(generation, self.node.index, rank)

    def open_event_log(self, generation: int) -> EventWriter:
        """This node's event log of a generation; creates the folder of the workers' logs too. Uses the store: raises
        StoreUnavailable."""
        with as_outages():
            self.worker_log(generation, 0).parent.mkdir(parents=True, exist_ok=True)
        return EventWriter(self.store, generation, self.node.index, requests=True)


class WorkerGroup:
    """Used by one thread. `NodeContext.prefork` serves one group at a time."""

    def __init__(self, context: NodeContext, generation: Generation, events: EventWriter) -> None:
        """events: this agent's log of the generation, owned by the group from now on. Raises OSError without memory."""
        self.generation = generation
        self.events = events
        self.workers: list[Worker] = []
        self._context = context
        self._board = Board.create(context.node.nproc_per_node)
        self._looks_stopped: dict[int, int] = {}
        self._ran_at: dict[int, float] = {}
        self._ended: set[int] = set()
        self._exit_progress: dict[int, ExitProgress] = {}
        """For each worker whose script has run its last line, by rank."""

    def start(self, listener: socket.socket | None, spent_seconds: float, *, check_node: bool = False) -> None:
        """Start the workers. listener: bound to the rendezvous' port, on node 0. spent_seconds: of the gang so far.
        check_node: they check for a slow machine first. Raises OSError if a log cannot be created; the workers before
        it have been started."""
        self.events.append(_started_event(self._context, self.generation))
        self._context.compiled.delete_incomplete()
        for local_rank in range(self._context.node.nproc_per_node):
            assignment = self._assignment(local_rank, listener, spent_seconds, check_node)
            log = self._context.worker_log(self.generation.generation, assignment.place.rank)
            self.workers.append(self._context.prefork.fork(assignment, log))

    def marks(self) -> dict[int, Mark]:
        """Each worker's newest mark, by rank; the last one of a worker that has ended."""
        return {w.rank: self._update_exit_progress(w, self._board.read(local)) for local, w in enumerate(self.workers)}

    def _update_exit_progress(self, worker: Worker, mark: Mark) -> Mark:
        """After a script's last line the worker marks nothing any more, and its use of resources shows progress."""
        if mark.earned is None or self._context.task.script is None or worker.pid is None or worker.state() == "gone":
            return mark
        if worker.rank not in self._exit_progress:
            self._exit_progress[worker.rank] = ExitProgress(worker.pid, mark.at, self._context.task.script.exit_seconds)
        progress = self._exit_progress[worker.rank]
        progress.update(time.monotonic())
        return replace(mark, at=progress.at, advances=mark.advances + progress.count)

    def _idle_at_exit(self, now: float) -> dict[int, Mark]:
        """The workers that still exist after their script's last line without making progress, by rank."""
        script = self._context.task.script
        if script is None:
            return {}
        marks, living = self.marks(), {w.rank for w in self.workers if w.exit_code() is None}
        late = {rank: m for rank, m in marks.items() if m.earned is not None and now - m.at > script.exit_seconds}
        return {rank: mark for rank, mark in late.items() if rank in living}

    def new_exits(self, now: float) -> list[Evidence]:
        """The workers that ended since the last call. Failures are logged. A worker that failed and makes no progress
        any more counts as ended: the others wait for it in vain."""
        idle = {rank: mark.earned for rank, mark in self._idle_at_exit(now).items() if mark.earned not in (0, STOPPED)}
        codes = {w.rank: idle.get(w.rank, w.exit_code()) for w in self.workers if w.rank not in self._ended}
        ended = [replace(w, reported_code=codes[w.rank]) for w in self.workers if codes.get(w.rank) is not None]
        if not ended:
            return []
        self._ended.update(w.rank for w in ended)
        marks = self.marks()
        evidence = []
        for exited in (self._without_reserved_code(exited, marks[exited.worker]) for exited in _exit_events(ended)):
            if exited.exit_code not in (0, STOPPED):
                self.events.append(exited)
            evidence.append(self._exit_evidence(exited, marks[exited.worker], now))
        return evidence

    def newly_stopped(self, now: float) -> list[Evidence]:
        """The workers that were stopped by a signal, each once. Call it at even intervals."""
        evidence = []
        for local, worker in enumerate(self.workers):
            rank = worker.rank
            if worker.state() != "stopped":
                self._ran_at[rank], self._looks_stopped[rank] = now, 0
                continue
            self._looks_stopped[rank] = self._looks_stopped.get(rank, 0) + 1
            if self._looks_stopped[rank] == STOPPED_LOOKS:
                ran_at = self._ran_at.get(rank, now)
                node, step = self._context.node.index, self._board.read(local).step
                evidence.append(own_evidence("stopped", node, now, at=ran_at, rank=rank, step=step))
        return evidence

    def give_order(self, kind: OrderKind) -> None:
        """Give the workers an order. All ranks of the gang vote, and this node's are enough."""
        self._board.give_order(kind)

    def set_unusable_tiers(self, tiers: Collection[int]) -> None:
        """Let the workers know which tiers are full or out of reach."""
        self._board.set_unusable_tiers(tiers)

    def stop(self, outcome: Literal["finished", "stopped", "failed", "preempted"]) -> set[int]:
        """Kill the workers that are left and all that they started, and log how the generation ended. Returns the
        processes that are still alive, because they hang in the kernel."""
        began = time.monotonic()
        for rank, mark in self._idle_at_exit(began).items():
            assert mark.earned is not None
            self.events.append(ScriptEndedLate(worker=rank, exit_code=mark.earned, seconds=began - mark.at))
            say(_ended_late_text(rank, mark.earned, began - mark.at))
        left = self._context.prefork.kill_workers()
        step = max((mark.step for mark in self.marks().values()), default=0)
        if outcome != "finished":
            self.events.append(GangStopped(seconds=time.monotonic() - began))
        self.events.append(GenerationEnded(outcome=outcome, step=step))
        self._board.close()
        return left

    def close_event_log(self) -> BackgroundCall[None]:
        """Close the log, once the workers have ended; nothing is logged about them afterwards."""
        return BackgroundCall("the log", self._try_close_event_log, CLOSE_SECONDS)

    def _try_close_event_log(self) -> None:
        with contextlib.suppress(StoreUnavailable):  # a failed last step must not hide how the gang ended
            self.events.close(CLOSE_SECONDS)

    def _without_reserved_code(self, exited: WorkerExited, mark: Mark) -> WorkerExited:
        """A reserved code that a script passes to `os._exit` does not have its reserved meaning."""
        code = exited.exit_code
        if self._context.task.script is None or code not in RESERVED or code == mark.earned:
            return exited
        return exited.model_copy(update={"exit_code": 1, "reason": f"os._exit({code})"})

    def _exit_evidence(self, exited: WorkerExited, mark: Mark, now: float) -> Evidence:
        facts = exited.model_dump(include={"exit_code", "signal", "reason", "log_tail"})
        # A script does not report that it is at its end.
        finishing = None if self._context.task.script else mark.phase == "finish"
        own = {"rank": exited.worker, "step": mark.step, "finishing": finishing}
        return own_evidence("exited", self._context.node.index, now, **own, **facts)

    def _assignment(
        self, local_rank: int, listener: socket.socket | None, spent_seconds: float, check_node: bool
    ) -> Assignment:
        context, task, node, formed = self._context, self._context.task, self._context.node, self.generation
        place = node.position_of(local_rank, node.threads_per_rank(task.config))
        host, _, port = formed.rendezvous.rpartition(":")
        return Assignment(
            config=task.config,
            job=task.job,
            job_uri=context.store.uri,
            root=task.root,
            data_id=task.data_id,
            fingerprint=task.fingerprint,
            generation=formed.generation,
            parent=formed.parent,
            tiers=[tier.uri for tier in context.tiers],
            place=place,
            master_host=host,
            master_port=int(port),
            listen_fd=listener.fileno() if place.rank == 0 and listener is not None else None,
            reason_path=str(context.folder / f"{formed.generation:06d}-rank{place.rank:05d}.reason"),
            board_path=self._board.path,
            check_node=check_node,
            script=task.script,
            usd_per_hour=task.usd_per_hour,
            spent_seconds=spent_seconds,
        )


def _started_event(context: NodeContext, generation: Generation) -> GenerationStarted:
    parent = generation.parent
    return GenerationStarted(
        run=context.node.run,
        attempt=context.node.attempt,
        nodes=context.node.nodes,
        world_size=generation.world_size,
        parent_generation=parent and parent.generation,
        parent_step=parent and parent.step,
        host=socket.gethostname(),
        tiers=[tier.uri for tier in context.tiers],
        rent=context.task.rent,
        training=training_hash(context.task.config) if context.task.script is None else "",
        param_dtype=context.task.dtype_choice,
    )


def _exit_events(ended: Sequence[Worker]) -> list[WorkerExited]:
    """How they ended, with their reasons and last lines if those can be read soon."""
    # The thread must not query the prefork process.
    frozen = [replace(worker, refresh=lambda: None) for worker in ended]
    reading = BackgroundCall("the last lines of a log", lambda: [exit_event(worker) for worker in frozen], TAIL_SECONDS)
    try:
        return reading.result()
    except OSError:
        return [exit_event_without_log(worker) for worker in frozen]


def _ended_late_text(rank: int, code: int, seconds: float) -> str:
    return (
        f"convoy: rank {rank} is ended after its script's last line, with exit code {code}: its threads and exit "
        f"handlers have made no progress for {seconds:.0f} s"
    )
