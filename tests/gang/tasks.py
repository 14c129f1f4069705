"""Gangs of real worker processes on tiny data."""

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

from convoy.config.run import RunConfig
from convoy.data.manifest import fingerprint
from convoy.data.prepare import prepare
from convoy.gang.agent import Gang
from convoy.gang.messages import GangOutcome
from convoy.gang.task import Node, Task
from convoy.gang.workers import processes
from convoy.job.events.log import read_events
from convoy.job.events.types import Event
from convoy.job.record import job_store
from convoy.storage import open_store
from tests.training.job import tiny

DEADLINE_SECONDS = 60.0


def a_task(root: str, **sections: Any) -> Task:
    """A job of 20 tiny steps; sections as in `tiny`."""
    config: RunConfig = tiny(**{"train": {"threads_per_rank": 1}, **sections})
    manifest = prepare(config.data, open_store(root))
    return Task(config, "job", root, manifest.id, fingerprint(manifest, config.data), None)


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
    return processes.descendants(processes.living(), pid)


def alive(pids: set[int]) -> set[int]:
    """Those that run; zombies do not."""
    return pids & processes.living().keys()
