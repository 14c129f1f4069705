"""This node's workers of one generation: started, seen, ordered about, stopped; and what is told of that."""

import contextlib
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from convoy.config.run import training_hash
from convoy.gang.assignment import RESERVED, STOPPED, Assignment
from convoy.gang.async_call import Background
from convoy.gang.evidence import Sign
from convoy.gang.say import say
from convoy.gang.task import Node, Task
from convoy.gang.workers.board import Board, Mark, OrderKind
from convoy.gang.workers.compile_cache import CompileCache
from convoy.gang.workers.exit_progress import ExitProgress
from convoy.gang.workers.placement import place_of, threads_per_rank
from convoy.gang.workers.prefork import Warm
from convoy.gang.workers.worker import Worker, exit_event, how_it_ended
from convoy.job.events.log import EventWriter
from convoy.job.events.types import GangStopped, GenerationEnded, GenerationStarted, ScriptEndedLate, WorkerExited
from convoy.job.lineage import Generation
from convoy.job.rank_logs import log_name
from convoy.storage import Store, StoreUnavailable, is_shared
from convoy.storage.posix_folder import outages

STOPPED_LOOKS = 4
"""A worker that so many looks in a row find stopped by a signal was not stopped for a moment only."""

TAIL_SECONDS = 0.5
"""For the last lines of a worker's log, which a store that hangs would not give."""

CLOSE_SECONDS = 5.0
"""For what of the log is not in the storage yet when a generation is over: how it ended was flushed before."""


@dataclass(frozen=True)
class Site:
    """What a node's agent has for all generations."""

    task: Task
    node: Node
    tiers: Sequence[Store]
    """Of the job: the root first."""
    folder: Path
    """On this machine, for as long as the agent lives."""
    warm: Warm
    compiled: CompileCache

    @property
    def store(self) -> Store:
        return self.tiers[0]

    @property
    def remote(self) -> bool:
        """The root takes no files that grow: what workers print is kept here, and put there
        (`gang/workers/log_upload.py`)."""
        return is_shared(self.store.uri)

    def log_of(self, generation: int, rank: int) -> Path:
        """Where a worker prints to."""
        return (self.folder if self.remote else Path(self.store.uri)) / log_name(generation, self.node.index, rank)

    def open_log(self, generation: int) -> EventWriter:
        """Where this node's agent tells of a generation; makes the folder of the workers' logs too. Asks the
        store: raises StoreUnavailable."""
        with outages():
            self.log_of(generation, 0).parent.mkdir(parents=True, exist_ok=True)
        return EventWriter(self.store, generation, self.node.index, requests=True)


class Team:
    """To be used by one thread. `Site.warm` serves one team at a time."""

    def __init__(self, site: Site, generation: Generation, events: EventWriter) -> None:
        """events: this agent's of the generation, the team's own from now on. Raises OSError if there is no memory."""
        self.generation = generation
        self.events = events
        self.workers: list[Worker] = []
        self._site = site
        self._board = Board.create(site.node.nproc_per_node)
        self._looks_stopped: dict[int, int] = {}
        self._ran_at: dict[int, float] = {}
        self._ended: set[int] = set()
        self._exit_progress: dict[int, ExitProgress] = {}
        """Of each worker whose script has run its last line, by rank."""

    def start(self, listener: socket.socket | None, spent_seconds: float, *, check_node: bool = False) -> None:
        """Start the workers. listener: bound to the rendezvous' port, on node 0. spent_seconds: of the gang so far.
        check_node: they look for a slow machine first. Raises OSError if there is no log for one; those before it have
        been started."""
        self.events.append(_started(self._site, self.generation))
        self._site.compiled.begin()
        for local_rank in range(self._site.node.nproc_per_node):
            assignment = self._assignment(local_rank, listener, spent_seconds, check_node)
            log = self._site.log_of(self.generation.generation, assignment.place.rank)
            self.workers.append(self._site.warm.fork(assignment, log))

    def marks(self) -> dict[int, Mark]:
        """Where each worker is, by rank; of one that has ended, where it was."""
        return {w.rank: self._with_progress(w, self._board.read(local)) for local, w in enumerate(self.workers)}

    def _with_progress(self, worker: Worker, mark: Mark) -> Mark:
        """After a script's last line the worker marks nothing any more, and what it uses shows whether it goes on."""
        if mark.earned is None or self._site.task.script is None or worker.pid is None or worker.state() == "gone":
            return mark
        if worker.rank not in self._exit_progress:
            self._exit_progress[worker.rank] = ExitProgress(worker.pid, mark.at, self._site.task.script.exit_seconds)
        progress = self._exit_progress[worker.rank]
        progress.look(time.monotonic())
        return replace(mark, at=progress.at, went_on=mark.went_on + progress.count)

    def _idle(self, now: float) -> dict[int, Mark]:
        """The workers that are still there after their script's last line, and do nothing any more, by rank."""
        script = self._site.task.script
        if script is None:
            return {}
        marks, living = self.marks(), {w.rank for w in self.workers if w.exit_code() is None}
        late = {rank: m for rank, m in marks.items() if m.earned is not None and now - m.at > script.exit_seconds}
        return {rank: mark for rank, mark in late.items() if rank in living}

    def exits(self, now: float) -> list[Sign]:
        """The workers that ended since the last call. Those that failed are told in the log. One that failed, and does
        nothing any more, counts as ended: the others wait for it in vain."""
        idle = {rank: mark.earned for rank, mark in self._idle(now).items() if mark.earned not in (0, STOPPED)}
        codes = {w.rank: idle.get(w.rank, w.exit_code()) for w in self.workers if w.rank not in self._ended}
        ended = [replace(w, known_code=codes[w.rank]) for w in self.workers if codes.get(w.rank) is not None]
        if not ended:
            return []
        self._ended.update(w.rank for w in ended)
        marks = self.marks()
        signs = []
        for exited in (self._own_code(exited, marks[exited.worker]) for exited in _events_of(ended)):
            if exited.exit_code not in (0, STOPPED):
                self.events.append(exited)
            signs.append(self._exit(exited, marks[exited.worker], now))
        return signs

    def stops(self, now: float) -> list[Sign]:
        """The workers that were stopped by a signal, each once. To be called in even intervals."""
        signs = []
        for local, worker in enumerate(self.workers):
            rank = worker.rank
            if worker.state() != "stopped":
                self._ran_at[rank], self._looks_stopped[rank] = now, 0
                continue
            self._looks_stopped[rank] = self._looks_stopped.get(rank, 0) + 1
            if self._looks_stopped[rank] == STOPPED_LOOKS:
                ran_at = self._ran_at.get(rank, now)
                signs.append(self._sign("stopped", rank, ran_at, now, step=self._board.read(local).step))
        return signs

    def order(self, kind: OrderKind) -> None:
        """Give the workers an order. All ranks of the gang vote, and this node's are enough."""
        self._board.order(kind)

    def away(self, tiers: Collection[int]) -> None:
        """Tell the workers which tiers are full or out of reach."""
        self._board.away(tiers)

    def stop(self, outcome: Literal["finished", "stopped", "failed", "preempted"]) -> set[int]:
        """Kill what is left of the workers and of all that they started, and tell how the generation ended; what
        still lives, for it hangs in the kernel."""
        began = time.monotonic()
        for rank, mark in self._idle(began).items():
            assert mark.earned is not None
            self.events.append(ScriptEndedLate(worker=rank, exit_code=mark.earned, seconds=began - mark.at))
            say(_ended_late(rank, mark.earned, began - mark.at))
        left = self._site.warm.stop()
        step = max((mark.step for mark in self.marks().values()), default=0)
        if outcome != "finished":
            self.events.append(GangStopped(seconds=time.monotonic() - began))
        self.events.append(GenerationEnded(outcome=outcome, step=step))
        self._board.close()
        return left

    def close(self) -> Background[None]:
        """Have the log kept, once the workers have ended; nothing is told of them afterwards."""
        return Background("the log", self._close, CLOSE_SECONDS)

    def _close(self) -> None:
        with contextlib.suppress(StoreUnavailable):  # what is done last may not hide how the gang ended
            self.events.close(CLOSE_SECONDS)

    def _own_code(self, exited: WorkerExited, mark: Mark) -> WorkerExited:
        """A script that calls `os._exit` with a code that tells an agent something has not earned its meaning."""
        code = exited.exit_code
        if self._site.task.script is None or code not in RESERVED or code == mark.earned:
            return exited
        return exited.model_copy(update={"exit_code": 1, "reason": f"os._exit({code})"})

    def _exit(self, exited: WorkerExited, mark: Mark, now: float) -> Sign:
        return self._sign(
            "exited",
            exited.worker,
            now,
            now,
            step=mark.step,
            exit_code=exited.exit_code,
            signal=exited.signal,
            reason=exited.reason,
            log_tail=exited.log_tail,
            # A script does not tell that it is at its end.
            finishing=None if self._site.task.script else mark.phase == "finish",
        )

    def _sign(self, kind: Literal["exited", "stopped"], rank: int, at: float, now: float, **facts: object) -> Sign:
        node = self._site.node.index
        return Sign.model_validate(
            {"kind": kind, "node": node, "by": node, "rank": rank, "at": at, "seen": now, **facts}
        )

    def _assignment(
        self, local_rank: int, listener: socket.socket | None, spent_seconds: float, check_node: bool
    ) -> Assignment:
        site, task, node, formed = self._site, self._site.task, self._site.node, self.generation
        place = place_of(local_rank, node, threads_per_rank(task.config, node))
        host, _, port = formed.rendezvous.rpartition(":")
        return Assignment(
            config=task.config,
            job=task.job,
            job_uri=site.store.uri,
            root=task.root,
            data_id=task.data_id,
            fingerprint=task.fingerprint,
            generation=formed.generation,
            parent=formed.parent,
            tiers=[tier.uri for tier in site.tiers],
            place=place,
            master_host=host,
            master_port=int(port),
            listen_fd=listener.fileno() if place.rank == 0 and listener is not None else None,
            reason_path=str(site.folder / f"{formed.generation:06d}-rank{place.rank:05d}.reason"),
            board_path=self._board.path,
            check_node=check_node,
            script=task.script,
            usd_per_hour=task.usd_per_hour,
            spent_seconds=spent_seconds,
        )


def _started(site: Site, generation: Generation) -> GenerationStarted:
    parent = generation.parent
    return GenerationStarted(
        run=site.node.run,
        attempt=site.node.attempt,
        nodes=site.node.nodes,
        world_size=generation.world_size,
        parent_generation=parent and parent.generation,
        parent_step=parent and parent.step,
        host=socket.gethostname(),
        tiers=[tier.uri for tier in site.tiers],
        rent=site.task.rent,
        training=training_hash(site.task.config) if site.task.script is None else "",
        param_dtype=site.task.dtype_choice,
    )


def _events_of(ended: Sequence[Worker]) -> list[WorkerExited]:
    """How they ended, with what they left behind if that can be read soon."""
    frozen = [replace(worker, refresh=_nothing) for worker in ended]  # the thread may not ask for news
    reading = Background("the last lines of a log", lambda: [exit_event(worker) for worker in frozen], TAIL_SECONDS)
    try:
        return reading.result()
    except OSError:
        return [how_it_ended(worker) for worker in frozen]


def _ended_late(rank: int, code: int, seconds: float) -> str:
    return (
        f"convoy: rank {rank} is ended after its script's last line, with exit code {code}: its threads and exit "
        f"handlers have made no progress for {seconds:.0f} s"
    )


def _nothing() -> None:
    pass
