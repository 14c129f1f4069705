"""A real gang on this machine, to which a drill does something: a process per node, found and seen from outside."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from convoy.config.run import RunConfig
from convoy.drills.fault import Fault, GangProgress, GangSize
from convoy.gang.local_node import LocalNode, NodeResult, NodeSpec, node_on_this_host, start_node
from convoy.gang.notices.sources import DrainRequest, request_drain
from convoy.gang.task import Task
from convoy.gang.workers.processes import descendants, environment_of, name_of, parents_by_pid, read_stat, state_of
from convoy.job.events.log import EventReader
from convoy.job.events.registry import Event
from convoy.job.heartbeat import read_mark
from convoy.job.lineage import generation_numbers, parse_commits
from convoy.job.record import job_store
from convoy.storage import Store, StoreUnavailable

MARK = "CONVOY_DRILL"
"""Environment variable of all processes of a gang: which trial they belong to."""

LOOK_SECONDS = 0.03
"""Between two looks at the log."""

SOON_SECONDS = 30.0
"""For what is to happen to a gang within moments: it is generous, for a machine that does something else too."""

RUN = "Drill/1"
"""In place of a Metaflow run's pathspec."""

Order = Literal["hang", "fail", "exit", "allocate", "poison", "crawl"]
"""hang: hold the interpreter's lock for ever. fail: raise an error. exit: end with success. allocate: take memory until
there is none. poison: a weight becomes NaN. crawl: every step takes several times as long from now on."""

ORDERS = "CONVOY_DRILL_ORDERS"
"""Environment variable: the folder where a process finds its orders and answers them."""

T = TypeVar("T")


class DrillError(RuntimeError):
    """The drill itself went wrong, or its gang did something that no drill expects."""


class DrillGang:
    """What a drill can see of its gang, and do to it. Use as a context: leaving it leaves no process behind."""

    def __init__(self, fault: Fault, config: RunConfig, job: str, root: str, data_id: str, fingerprint: str) -> None:
        self.fault = fault
        self.size: GangSize = fault.size
        self.folder: Path = fault.folder
        """Of this trial."""
        self.config = config
        self.job = job
        self.store: Store = job_store(root, job)
        self.attempt = -1
        """Of the run's step: 0 is the first; -1: none was started yet."""
        self.injected: list[float] = []
        """Wall times, of what `inject` returned."""
        self.token = f"{os.getpid()}-{job}"
        self._events: list[Event] = []
        self._reader = EventReader(self.store)
        self._orders = self.folder / "orders"
        self._task = Task(config, job, root, data_id, fingerprint, has_record=True)
        self._agents: list[LocalNode] = []
        self._before: list[Sequence[NodeResult]] = []

    def __enter__(self) -> "DrillGang":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # What is seen.

    def progress(self) -> GangProgress:
        """As the log has it now."""
        with contextlib.suppress(StoreUnavailable):
            self._events = sorted([*self._events, *self._reader.poll()], key=lambda e: e.t)
        steps = [ref.step for ref in parse_commits(self.store.sizes("commits/"))]
        return GangProgress(
            events=self._events,
            attempt=self.attempt,
            generation=max(generation_numbers(self.store), default=0),
            committed=max(steps, default=None),
            injected=tuple(self.injected),
        )

    def wait_for(
        self, text: str, happened: Callable[[], T | None], seconds: float = SOON_SECONDS, pause: float = LOOK_SECONDS
    ) -> T:
        """The first true value of `happened()`, called every `pause` seconds. Raises DrillError if none comes."""
        deadline = time.monotonic() + seconds
        while not (value := happened()):
            if time.monotonic() > deadline:
                raise DrillError(f"{text}: did not happen in {seconds:g} s")
            time.sleep(pause)
        return value

    def wait_for_event(self, text: str, matches: Callable[[Event], bool], seconds: float = SOON_SECONDS) -> Event:
        """The first event of the log that is so, old ones included. Raises DrillError if none comes."""
        events: list[Event] = self.wait_for(text, lambda: [*filter(matches, self.progress().events)], seconds)
        return events[0]

    def pids(self) -> set[int]:
        """All that belong to this gang and have not ended."""
        entry = f"{MARK}={self.token}".encode()
        return {pid for pid in parents_by_pid() if entry in environment_of(pid)}

    def await_worker_pid(self, rank: int) -> int:
        """Process id of a rank, once it is there."""
        return self.wait_for(f"rank {rank}", lambda: self.current_worker_pid(rank))

    def current_worker_pid(self, rank: int) -> int | None:
        """The same; None: it is not there now."""
        return newest_of_name(self.pids(), f"convoy rank {rank}")

    def node_pids(self, node: int) -> set[int]:
        """All processes of a node: its agent, and whatever descends from it."""
        agent = self.agent_pid(node)
        return {agent, *descendants(parents_by_pid(), agent)}

    def agent_pid(self, node: int) -> int:
        """Process id of a node's agent."""
        return self._agents[node].process.pid

    def temporary_folder(self, node: int) -> Path:
        """Where the node's processes make theirs."""
        return self.folder / f"tmp-{node}"

    # What is done.

    def give_order(self, rank: int, order: Order) -> float:
        """Have a worker do it, in its own process, as if it came from the training: wall time at which it began to.

        The process that workers are forked from finds `inside/sitecustomize.py` on its path, if the fault has `hooks`:
        a file says what the worker does, a signal says when. The training's own code has nothing of it. Raises
        DrillError if the worker does not carry out the order, and ProcessLookupError if it ends before.
        """
        pid = self.await_worker_pid(rank)
        answer = self._orders / f"{pid}.answer"
        (self._orders / str(pid)).write_text(order)
        os.kill(pid, signal.SIGRTMIN + 7)  # named here: a laptop that only plans drills may not have it

        def has_answered() -> bool:
            if state_of(pid) == "gone" and not answer.exists():
                raise ProcessLookupError(f"process {pid} ended before it heeded the order to {order}")
            return answer.exists()

        self.wait_for(f"the answer of process {pid} to the order to {order}", has_answered)
        began = float(answer.read_text())
        answer.unlink()
        return began

    def kill_node(self, node: int) -> float:
        """All processes of a node are killed, as if its machine was gone; wall time. Its connections close."""
        tree = self.node_pids(node)
        now = time.time()
        for pid in (self.agent_pid(node), *tree):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return now

    # For the harness.

    def start(self) -> None:
        """Start the first attempt, or the next one: each agent in a process of its own."""
        if self._agents:
            self._before.append(self._newest_results())
        self.attempt += 1
        self._agents = [self._start_node(node) for node in range(self.size.nodes)]

    def all_nodes_ended(self) -> bool:
        """Whether the newest attempt has ended on all nodes."""
        return all(agent.process.poll() is not None for agent in self._agents)

    def any_node_ended(self) -> bool:
        """Whether it has on one node at least."""
        return any(agent.process.poll() is not None for agent in self._agents)

    def attempt_results(self) -> Sequence[Sequence[NodeResult]]:
        """How each attempt ended, by node; for a node without a result, how its agent ended."""
        return [*self._before, self._newest_results()]

    def killed_nodes(self) -> Sequence[int]:
        """Nodes of any attempt whose agents ended without a word, as a machine does that is gone."""
        return sorted({node for ended in self.attempt_results() for node, each in enumerate(ended) if each.was_killed})

    def drain(self) -> None:
        """Have the run of the job save and end."""
        mark = read_mark(self.store)
        run = mark.run if mark is not None else RUN
        request_drain(self.store, DrainRequest(run=run, now=False, host=socket.gethostname(), requested=time.time()))

    def kill(self) -> None:
        """No process of the gang is left."""
        deadline = time.monotonic() + SOON_SECONDS
        while (left := self.pids()) and time.monotonic() < deadline:
            for pid in left:
                for number in (signal.SIGCONT, signal.SIGKILL):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            time.sleep(LOOK_SECONDS)
        for agent in self._agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.process.wait(SOON_SECONDS)

    def _environment(self, node: int) -> dict[str, str]:
        environment = {**os.environ, MARK: self.token}
        if self.fault.hooks:
            self._orders.mkdir(exist_ok=True)
            path = [str(Path(__file__).with_name("inside")), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment |= {ORDERS: str(self._orders), "PYTHONPATH": os.pathsep.join(path)}
        return {**environment, **self.fault.environment(node)}

    def _newest_results(self) -> Sequence[NodeResult]:
        return [agent.result() for agent in self._agents]

    def _start_node(self, node: int) -> LocalNode:
        main_host, notice_file = self.fault.main_host(), self.folder / f"notice-{node}"
        position = node_on_this_host(node, self.size.nodes, self.size.nproc, RUN, self.attempt, main_host, notice_file)
        spec = NodeSpec(task=self._task, node=position)
        temporary = self.temporary_folder(node)
        temporary.mkdir(exist_ok=True)
        environment = {**self._environment(node), "TMPDIR": str(temporary)}
        folder = self.folder / "nodes" / f"{self.attempt}-{node}"
        return start_node(spec, folder, environment, self.fault.command_prefix(node))


def newest_of_name(pids: Iterable[int], name: str) -> int | None:
    """The process of this name that was started last, except those that another one of the name forked; None: there is
    none. Process ids do not order them, since they wrap around."""
    named = {pid: stat for pid in pids if name_of(pid) == name and (stat := read_stat(pid)) is not None}
    first = {pid: stat.started_ticks for pid, stat in named.items() if stat.parent not in named}
    return max(first, key=first.__getitem__, default=None)
