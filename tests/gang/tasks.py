"""Gangs of real agents and worker processes, on tiny data or with a script as a user would bring it."""

import contextlib
import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from convoy.config.run import RunConfig
from convoy.data.job_data import prepare_job_data
from convoy.drills.gang import newest_of_name
from convoy.gang.agent import Gang
from convoy.gang.messages import GangOutcome
from convoy.gang.task import Node, Script, Task
from convoy.gang.workers import processes
from convoy.job.events.log import read_events
from convoy.job.events.registry import Event
from convoy.job.record import job_store
from convoy.report.fold import fold
from convoy.report.train_report import Incident
from convoy.storage import open_store
from tests.training.job import tiny

DEADLINE_SECONDS = 60.0


def a_task(root: str, **sections: Any) -> Task:
    """A job of 20 tiny steps; sections as in `tiny`."""
    config: RunConfig = tiny(**{"train": {"threads_per_rank": 1}, **sections})
    data = prepare_job_data(config, open_store(root))
    return Task(config, "job", root, data.id, data.fingerprint, None)


def a_node(nproc: int = 2, index: int = 0, nodes: int = 1, run: str = "Flow/1", attempt: int = 0) -> Node:
    return Node(
        index=index,
        nodes=nodes,
        nproc_per_node=nproc,
        main_host="127.0.0.1",
        run=run,
        formation=f"{run}/train/1/{attempt}",
        attempt=attempt,
        shares_host=True,
    )


def outcome_of(gang: Gang) -> GangOutcome:
    """How the gang ends. Fails the test if it does not end in time."""
    outcome = gang.wait(DEADLINE_SECONDS)
    assert outcome is not None, "the gang did not end in time"
    return outcome


def run_gang(task: Task, node: Node) -> GangOutcome:
    """In a fork of the test process: what that left as garbage is not to be collected here."""
    gc.freeze()
    with Gang(task, node) as gang:
        return outcome_of(gang)


def pid_of(gang: Gang, local_rank: int) -> int:
    """Of a worker, once it is there."""

    def known() -> int | None:
        workers = team.workers[local_rank:] if (team := gang.workers) else []
        return workers[0].reported_pid if workers else None

    return int(wait_for("a worker", known))


def events_of(task: Task) -> list[Event]:
    return read_events(job_store(task.root, task.job))


def wait_for(what: str, happened: Callable[[], Any]) -> Any:
    """The first true value of `happened()`. Fails the test if there is none in time."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        value = happened()
        if value:
            return value
        time.sleep(0.01)
    pytest.fail(f"{what}: did not happen in {DEADLINE_SECONDS:.0f} s")


def wait_for_step(task: Task, step: int) -> None:
    """Until rank 0 has logged this step."""
    wait_for(f"step {step}", lambda: any(e.kind == "step" and e.step >= step for e in events_of(task)))


def descendants(pid: int) -> set[int]:
    """Living processes below `pid`, whole tree."""
    return processes.descendants(processes.parents_by_pid(), pid)


def alive(pids: set[int]) -> set[int]:
    """Those that run; zombies do not."""
    return pids & processes.parents_by_pid().keys()


DDP = Path(__file__).resolve().parents[1] / "flows" / "ddp_script.py"


def a_script(folder: Path, text: str, *args: object, **options: Any) -> Task:
    """What a gang is to do to run this text. options: as of `running`."""
    file = folder / "a_script.py"
    file.write_text(text)
    return running(folder, str(file), *args, **options)


def running(
    folder: Path,
    entrypoint: str,
    *args: object,
    hang_seconds: float = 600.0,
    exit_seconds: float = 35.0,
    **sections: Any,
) -> Task:
    config = RunConfig.model_validate({"train": {"threads_per_rank": 1}, **sections})
    words = tuple(map(str, args))
    script = Script(entrypoint=entrypoint, args=words, hang_seconds=hang_seconds, exit_seconds=exit_seconds)
    return Task(config, "job", str(folder / "root"), "", "script", None, script=script)


def printed(task: Task, rank: int, generation: int = 1) -> str:
    """By a rank on a node of its own."""
    return Path(task.root, "job", "logs", f"{generation:06d}", f"{rank:05d}", f"rank{rank:05d}.log").read_text()


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
def agents(
    task: Task, nodes: int, environment: Mapping[str, str] | None = None, *, shares_host: bool = True
) -> Iterator[list[Agent]]:
    """An agent for each node, with one worker each. Nothing of them is left when the block ends, or the test fails.

    environment: added to that of the last node. shares_host: False where each node is to take itself for a host.
    """
    own = [{}] * (nodes - 1) + [dict(environment or {})]
    each = [replace(a_node(nproc=1, index=node, nodes=nodes), shares_host=shares_host) for node in range(nodes)]
    started = [_start(task, node, own[node.index]) for node in each]
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
