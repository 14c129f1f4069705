"""One node's part of a gang: form or join the generation, run the workers, append what is seen."""

import contextlib
import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from convoy.config.run import RunConfig
from convoy.events.log import EventWriter
from convoy.events.types import PEER_LOST, GenerationEnded, GenerationStarted, WorkerExited
from convoy.gang.assignment import EXPECTED, STOPPED, Assignment, Outcome, Place
from convoy.gang.workers import Worker, all_done, first_exit, start_worker, stop_workers
from convoy.job.generations import await_generation, form_generation
from convoy.job.lineage import Generation
from convoy.job.live import LiveMarker, check_not_live
from convoy.job.record import ensure_record, keep_config, known_record, tier_stores
from convoy.storage import Store, StoreUnavailable

JOIN_SECONDS = {"local": 600.0, "remote": 3600.0}
"""A node waits this long for node 0 to form the generation: it may still be copying data, or have no machine yet."""

PEERS_SECONDS = 2.0
"""When a worker failed for want of a peer, the others of this node get this long to show an earlier cause."""

CLOSE_SECONDS = 5.0
"""For what of the log is not in the storage yet when the gang is left: how it ended was flushed before."""


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
    spent_seconds: float = 0.0
    """Gang seconds of all earlier generations."""
    known: bool = False
    """The job has a record: without one, its root is not there."""


class Gang:
    """This node's workers of one generation. Use as a context: leaving it leaves no process behind."""

    def __init__(self, task: Task, node: Node) -> None:
        self._task = task
        self._node = node
        self._tiers = tier_stores(task.root, task.job, task.config)
        self.store: Store = self._tiers[0]
        self._workers: list[Worker] = []
        self._listener: socket.socket | None = None

    def __enter__(self) -> "Gang":
        with ExitStack() as stack:  # undone also if a later part of this fails
            self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="convoy-")))
            self.generation = self._form(stack) if self._node.index == 0 else self._join()
            self._events = EventWriter(self.store, self.generation.generation, self._node.index)
            stack.callback(_unless_out_of_reach, lambda: self._events.close(CLOSE_SECONDS))
            stack.callback(self._stop)
            self._events.append(self._started())
            for local_rank in range(self._node.nproc_per_node):
                self._workers.append(self._start(local_rank))
            self._leave = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.close()

    def wait(self, seconds: float) -> Outcome | None:
        """The outcome if the workers end within `seconds`, else None."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if all_done(self._workers):
                stopped = any(worker.exit_code() == STOPPED for worker in self._workers)
                return self._end(Outcome(outcome="stopped" if stopped else "finished"))
            exited = first_exit(self._workers)
            if exited is not None:
                return self._fail(self._first_cause(exited))
            time.sleep(0.05)
        return None

    def _first_cause(self, exited: WorkerExited) -> WorkerExited:
        deadline = time.monotonic() + PEERS_SECONDS
        while exited.exit_code == PEER_LOST and time.monotonic() < deadline:
            time.sleep(0.05)
            others = [w for w in self._workers if w.exit_code() != PEER_LOST]
            exited = first_exit(others) or exited
        return exited

    def _fail(self, exited: WorkerExited) -> Outcome:
        stop_workers(self._workers)
        failed = Outcome(outcome="failed", message=failure_message(exited, self._node.index))
        try:
            self._events.append(exited)
            return self._end(failed)
        except StoreUnavailable as error:  # never in place of the cause
            return failed.model_copy(
                update={"message": f"{failed.message}\nand the event log is out of reach: {error}"}
            )

    def _end(self, outcome: Outcome) -> Outcome:
        self._events.append(GenerationEnded(outcome=outcome.outcome))
        self._events.flush()
        return outcome

    def _stop(self) -> None:
        stop_workers(self._workers)
        if self._remote:
            _unless_out_of_reach(self._put_logs)

    def _put_logs(self) -> None:
        """Put the workers' output where it lies from the start on a shared file system."""
        for worker in self._workers:
            self.store.write(self._log_name(worker.rank), worker.log.read_bytes())

    def _form(self, stack: ExitStack) -> Generation:
        task, node = self._task, self._node
        check_not_live(self.store, task.job, node.run)
        if task.known:
            known_record(self.store, task.config, task.fingerprint)
        else:
            ensure_record(self.store, task.job, task.config, task.fingerprint)
        marker = LiveMarker(self.store, task.job, node.run).__enter__()
        stack.callback(_unless_out_of_reach, marker.__exit__)
        # Bound here and handed to rank 0, so that no other process can take the port in between.
        self._listener = stack.enter_context(socket.create_server(("", 0), backlog=1024))
        return form_generation(
            self.store,
            formation=node.formation,
            nodes=node.nodes,
            world_size=node.nodes * node.nproc_per_node,
            config_hash=keep_config(self.store, task.config),
            rendezvous=f"{node.main_host}:{self._listener.getsockname()[1]}",
            others=self._tiers[1:],
        )

    def _join(self) -> Generation:
        return await_generation(
            self.store,
            self._node.formation,
            deadline_seconds=JOIN_SECONDS["remote" if self._remote else "local"],
            poll_seconds=0.5 if self._remote else 0.05,
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
            tiers=[tier.uri for tier in self._tiers],
        )

    def _start(self, local_rank: int) -> Worker:
        node, task = self._node, self._task
        rank = node.index * node.nproc_per_node + local_rank
        host, _, port = self.generation.rendezvous.rpartition(":")
        assignment = Assignment(
            config=task.config,
            job=task.job,
            job_uri=self.store.uri,
            root=task.root,
            data_id=task.data_id,
            fingerprint=task.fingerprint,
            generation=self.generation.generation,
            parent=self.generation.parent,
            tiers=[tier.uri for tier in self._tiers],
            place=place_of(local_rank, node, threads_per_rank(task.config, node)),
            master_host=host,
            master_port=int(port),
            listen_fd=self._listener.fileno() if rank == 0 and self._listener is not None else None,
            agent_pid=os.getpid(),
            reason_path=str(self._folder / f"rank{rank:05d}.reason"),
            usd_per_hour=task.usd_per_hour,
            spent_seconds=task.spent_seconds,
        )
        return start_worker(assignment, (self._folder if self._remote else Path(self.store.uri)) / self._log_name(rank))

    def _log_name(self, rank: int) -> str:
        return f"logs/{self.generation.generation:06d}/{self._node.index:05d}/rank{rank:05d}.log"

    @property
    def _remote(self) -> bool:
        return self.store.uri.startswith("s3://")


def place_of(local_rank: int, node: Node, threads: int) -> Place:
    """Where a worker of a node stands in the gang."""
    rank = node.index * node.nproc_per_node + local_rank
    return Place(
        rank=rank,
        local_rank=local_rank,
        node=node.index,
        nodes=node.nodes,
        nproc_per_node=node.nproc_per_node,
        host_rank=rank if node.shares_host else local_rank,
        host_ranks=ranks_on_host(node),
        threads=threads,
    )


def ranks_on_host(node: Node) -> int:
    """Ranks that share the cores and GPUs of the node's host."""
    return node.nproc_per_node * (node.nodes if node.shares_host else 1)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def threads_per_rank(config: RunConfig, node: Node, cores: Callable[[], int] = usable_cores) -> int:
    """Intra-op CPU threads of a rank: the host's cores shared evenly by the ranks on it, unless configured."""
    if config.train.threads_per_rank is not None:
        return config.train.threads_per_rank
    return max(1, cores() // ranks_on_host(node))


def _unless_out_of_reach(tidy: Callable[[], object]) -> None:
    """What is done last may not hide how the gang ended."""
    with contextlib.suppress(StoreUnavailable):
        tidy()


def failure_message(exited: WorkerExited, node: int) -> str:
    """The first cause on a node in plain words."""
    if exited.exit_code == EXPECTED:
        return exited.reason
    how = f"was killed by {exited.signal}" if exited.signal else f"exited with code {exited.exit_code}"
    lines = [f"rank {exited.worker} on node {node} {how}" + (f": {exited.reason}" if exited.reason else "")]
    if exited.log_tail:
        lines += ["its last lines:", *(f"  {line}" for line in exited.log_tail.splitlines())]
    return "\n".join(lines)
