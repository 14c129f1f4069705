"""One node's part of a gang: form or join the generation, run the workers, append what is seen."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from convoy.config.run import RunConfig
from convoy.events.log import EventWriter
from convoy.events.types import GenerationEnded, GenerationStarted, WorkerExited
from convoy.gang.assignment import EXPECTED, PEER_LOST, Assignment, Outcome, Place
from convoy.gang.workers import Worker, all_done, first_exit, start_worker, stop_workers
from convoy.job.generations import await_generation, form_generation
from convoy.job.lineage import Generation
from convoy.job.live import LiveMarker, check_not_live
from convoy.job.record import ensure_record, job_uri, keep_config
from convoy.storage import Store, open_store

JOIN_SECONDS = 600.0
"""A node waits this long for node 0 to form the generation."""

PEERS_SECONDS = 2.0
"""When a worker failed for want of a peer, the others of this node get this long to show an earlier cause."""


@dataclass(frozen=True)
class Node:
    """Who this node is in the flow."""

    index: int
    nodes: int
    nproc_per_node: int
    main_host: str
    run: str
    """Metaflow pathspec of the run."""
    formation: str
    """Names this attempt of this step, the same on all nodes."""
    attempt: int
    shares_host: bool
    """All nodes of the gang are on this host."""


@dataclass(frozen=True)
class Task:
    """What the gang is to do."""

    config: RunConfig
    job: str
    root: str
    data_id: str
    fingerprint: str
    usd_per_hour: float | None


class Gang:
    """This node's workers of one generation. Use as a context: leaving it leaves no process behind."""

    def __init__(self, task: Task, node: Node) -> None:
        self._task = task
        self._node = node
        self.store: Store = open_store(job_uri(task.root, task.job))
        self._workers: list[Worker] = []
        self._listener: socket.socket | None = None
        self._marker: LiveMarker | None = None

    def __enter__(self) -> "Gang":
        self.generation = self._form() if self._node.index == 0 else self._join()
        self._events = EventWriter(self.store, self.generation.generation, self._node.index)
        self._events.append(self._started())
        self._workers = [self._start(local_rank) for local_rank in range(self._node.nproc_per_node)]
        return self

    def __exit__(self, *_: object) -> None:
        stop_workers(self._workers)
        self._events.close()
        if self._marker is not None:
            self._marker.__exit__()
        if self._listener is not None:
            self._listener.close()

    def wait(self, seconds: float) -> Outcome | None:
        """The outcome if the workers end within `seconds`, else None."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if all_done(self._workers):
                return self._end(Outcome(outcome="finished"))
            exited = first_exit(self._workers)
            if exited is not None:
                return self._fail(self._first_cause(exited))
            time.sleep(0.05)
        return None

    def _first_cause(self, exited: WorkerExited) -> WorkerExited:
        deadline = time.monotonic() + PEERS_SECONDS
        while exited.exit_code == PEER_LOST and time.monotonic() < deadline:
            time.sleep(0.05)
            others = [w for w in self._workers if w.process.poll() != PEER_LOST]
            exited = first_exit(others) or exited
        return exited

    def _fail(self, exited: WorkerExited) -> Outcome:
        stop_workers(self._workers)
        self._events.append(exited)
        return self._end(Outcome(outcome="failed", message=failure_message(exited, self._node.index)))

    def _end(self, outcome: Outcome) -> Outcome:
        self._events.append(GenerationEnded(outcome=outcome.outcome))
        self._events.flush()
        return outcome

    def _form(self) -> Generation:
        task, node = self._task, self._node
        check_not_live(self.store, task.job, node.run)
        ensure_record(self.store, task.job, task.config, task.fingerprint)
        self._marker = LiveMarker(self.store, node.run)
        self._marker.__enter__()
        # Bound here and handed to rank 0, so that no other process can take the port in between.
        self._listener = socket.create_server(("", 0), backlog=1024)
        return form_generation(
            self.store,
            formation=node.formation,
            nodes=node.nodes,
            world_size=node.nodes * node.nproc_per_node,
            config_hash=keep_config(self.store, task.config),
            rendezvous=f"{node.main_host}:{self._listener.getsockname()[1]}",
        )

    def _join(self) -> Generation:
        remote = self._task.root.startswith("s3://")
        return await_generation(
            self.store,
            self._node.formation,
            deadline_seconds=JOIN_SECONDS,
            poll_seconds=0.5 if remote else 0.05,
            sleep=time.sleep,
        )

    def _started(self) -> GenerationStarted:
        parent = self.generation.parent
        return GenerationStarted(
            run=self._node.run,
            attempt=self._node.attempt,
            nodes=self._node.nodes,
            world_size=self.generation.world_size,
            parent_generation=parent and parent.generation,
            parent_step=parent and parent.step,
            host=socket.gethostname(),
        )

    def _start(self, local_rank: int) -> Worker:
        node, task = self._node, self._task
        rank = node.index * node.nproc_per_node + local_rank
        host, _, port = self.generation.rendezvous.rpartition(":")
        folder = Path(mkdtemp(prefix=f"convoy-rank{rank}-"))
        assignment = Assignment(
            config=task.config,
            job=task.job,
            job_uri=self.store.uri,
            root=task.root,
            data_id=task.data_id,
            fingerprint=task.fingerprint,
            generation=self.generation.generation,
            parent=self.generation.parent,
            place=Place(
                rank=rank,
                local_rank=local_rank,
                node=node.index,
                nodes=node.nodes,
                nproc_per_node=node.nproc_per_node,
                threads=threads_per_rank(task.config, node),
            ),
            master_host=host,
            master_port=int(port),
            listen_fd=self._listener.fileno() if rank == 0 and self._listener is not None else None,
            reason_path=str(folder / "reason"),
            usd_per_hour=task.usd_per_hour,
        )
        return start_worker(assignment, self._log_path(rank, folder))

    def _log_path(self, rank: int, folder: Path) -> Path:
        if self._task.root.startswith("s3://"):
            return folder / "log"
        name = f"logs/{self.generation.generation:06d}/{self._node.index:05d}/rank{rank:05d}.log"
        return Path(self.store.uri) / name


def threads_per_rank(config: RunConfig, node: Node, cores: Callable[[], int | None] = os.cpu_count) -> int:
    """Intra-op CPU threads of a rank: the host's cores shared evenly by the ranks on it, unless configured."""
    if config.train.threads_per_rank is not None:
        return config.train.threads_per_rank
    on_host = node.nproc_per_node * (node.nodes if node.shares_host else 1)
    return max(1, (cores() or 1) // on_host)


def failure_message(exited: WorkerExited, node: int) -> str:
    """The first cause on a node in plain words."""
    if exited.exit_code == EXPECTED:
        return exited.reason
    how = f"was killed by {exited.signal}" if exited.signal else f"exited with code {exited.exit_code}"
    lines = [f"rank {exited.worker} on node {node} {how}" + (f": {exited.reason}" if exited.reason else "")]
    if exited.log_tail:
        lines += ["its last lines:", *(f"  {line}" for line in exited.log_tail.splitlines())]
    return "\n".join(lines)
