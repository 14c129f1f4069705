"""Whole gangs: an agent per node, each in a process of its own, with real workers."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from convoy.drills.gang import newest_of_name
from convoy.gang.messages import GangOutcome
from convoy.gang.task import Node, Task
from convoy.report.fold import fold
from convoy.report.train_report import Incident
from tests.gang.tasks import DEADLINE_SECONDS, a_node, alive, descendants, events_of, run_gang, wait_for


@dataclass
class Agent:
    """A node's agent in a process of its own."""

    process: BaseProcess
    results: Connection
    tree: set[int]
    """All that was seen below it."""

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def worker(self, rank: int) -> int:
        """Process id of one of its workers, once that is there."""
        return int(wait_for(f"rank {rank}", lambda: self._named(f"convoy rank {rank}")))

    def outcome(self) -> GangOutcome:
        """How the gang ended, by this agent. Fails the test if it does not end in time."""
        assert self.results.poll(DEADLINE_SECONDS), "the agent reported no outcome in time"
        outcome: GangOutcome | str = self.results.recv()
        assert isinstance(outcome, GangOutcome), outcome
        return outcome

    def signal(self, number: signal.Signals) -> float:
        """Send it a signal, and remember what is below it; when, of time.monotonic()."""
        self.tree |= descendants(self.pid)
        os.kill(self.pid, number)
        return time.monotonic()

    def _named(self, name: str) -> int | None:
        return newest_of_name(descendants(self.pid), name)


@contextlib.contextmanager
def agents(task: Task, nodes: int, environment: Mapping[str, str] | None = None) -> Iterator[list[Agent]]:
    """An agent for each node, with one worker each. Nothing of them is left when the block ends, or the test fails.

    environment: added to that of the last node.
    """
    own = [{}] * (nodes - 1) + [dict(environment or {})]
    started = [_start(task, a_node(nproc=1, index=node, nodes=nodes), own[node]) for node in range(nodes)]
    try:
        yield started
        for agent in started:
            agent.tree |= descendants(agent.pid)
            agent.process.join(DEADLINE_SECONDS)
        wait_for("the end of all", lambda: not any(alive(agent.tree) for agent in started))
    finally:
        for agent in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent.pid, signal.SIGCONT)
            agent.process.kill()
            agent.process.join(DEADLINE_SECONDS)


def incidents(task: Task) -> tuple[Incident, ...]:
    """What the job's log tells of what went wrong."""
    return fold(events_of(task)).incidents


def _start(task: Task, node: Node, environment: dict[str, str]) -> Agent:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_be, args=(task, node, environment, theirs))
    process.start()
    theirs.close()
    return Agent(process, ours, set())


def _be(task: Task, node: Node, environment: dict[str, str], results: Connection) -> None:
    os.environ.update(environment)
    try:
        results.send(run_gang(task, node))
    except Exception as error:
        results.send(f"{type(error).__name__}: {error}")
