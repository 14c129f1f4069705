"""Whole gangs of real agents and workers, to which something happens that no drill does."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from convoy.drills.testbed.imds import ImdsStandIn, Reply
from convoy.gang.task import Task
from convoy.job.events.registry import NodeChecked, NoticeSources, WorkerReady
from convoy.job.lineage import counted_commits, read_history
from convoy.job.record import job_store
from convoy.report.train_report import Incident
from tests.gang.tasks import Agent, a_task, agents, events_of, incidents, wait_for_step

pytestmark = [pytest.mark.slow, pytest.mark.alone]

NODES = 3
TRAIN = {"steps": 120, "threads_per_rank": 1, "log_every_steps": 1}
SAVES = {"every_steps": 20}
LONG = TRAIN | {"steps": 100_000}

MOMENT_SECONDS = 0.25
"""A worker that is stopped for longer may be taken for a stopped one."""

TRIES = 5
"""On a machine so busy that a moment becomes longer."""


def small(root: Path, **sections: Any) -> Task:
    return a_task(str(root), **{"train": TRAIN, "checkpoint": SAVES, **sections})


def ended_as_one(gang: list[Agent], *, but: int | None = None) -> Any:
    """The outcome, the same on all nodes."""
    first, *others = [agent.outcome() for node, agent in enumerate(gang) if node != but]
    assert all(other == first for other in others), [first, *others]
    return first


def the_only(task: Task, kind: str, rank: int | None, node: int) -> Incident:
    """The job's one incident; its figures are printed."""
    (incident,) = incidents(task)
    told = {name: getattr(incident, name) for name in ("detected_s", "stopped_s", "recovered_s", "beyond_s")}
    print(f"{kind}: {told}, {incident.steps_recomputed} steps recomputed: {incident.what}")
    assert (incident.kind, incident.rank, incident.node) == (kind, rank, node)
    return incident


def test_a_worker_that_was_stopped_for_a_moment_is_left_alone(tmp_path: Path) -> None:
    for number in range(TRIES):
        task = small(tmp_path / str(number), train=LONG | {"steps": 200})
        with agents(task, 2) as gang:
            worker = gang[1].worker(1)
            wait_for_step(task, 20)
            began = time.monotonic()
            os.kill(worker, signal.SIGSTOP)
            time.sleep(0.1)
            os.kill(worker, signal.SIGCONT)
            took = time.monotonic() - began
            assert ended_as_one(gang).outcome == "finished"
        if not incidents(task) or took <= MOMENT_SECONDS:
            break
    assert incidents(task) == ()


def test_a_frozen_agent_ends_the_gang_with_its_name(tmp_path: Path) -> None:
    task = small(tmp_path, train=LONG)
    with agents(task, NODES) as gang:
        wait_for_step(task, 30)
        began = gang[1].signal(signal.SIGSTOP)
        outcome = ended_as_one(gang, but=1)
        took = time.monotonic() - began
        gang[1].signal(signal.SIGKILL)

    assert outcome.outcome == "failed"
    assert "node 1" in outcome.message.splitlines()[0]
    print(f"ended on all other nodes after {took:.2f} s")
    assert took <= 25.0  # a connection that nobody closes is given up after minutes


def test_workers_that_do_not_end_in_time_for_a_notice_are_ended(tmp_path: Path) -> None:
    task = small(tmp_path, train=LONG, notices={"deadline_seconds": 4.0})
    with agents(task, 2) as gang:
        wait_for_step(task, 20)
        worker = gang[1].worker(1)
        os.kill(gang[0].pid, signal.SIGTERM)
        os.kill(worker, signal.SIGSTOP)
        outcome = ended_as_one(gang)
    assert outcome.outcome == "preempted"


def customized(folder: Path, program: str) -> dict[str, str]:
    """An environment in which every Python process runs this first."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(program)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.parametrize("reply", [Reply("broken", status=500), Reply("slow", delay_seconds=5.0)], ids=["500", "slow"])
def test_a_wrong_clock_and_a_metadata_service_that_fails_disturb_nothing(reply: Reply, tmp_path: Path) -> None:
    ahead = "import time\nreal = time.time\ntime.time = lambda: real() + 100\n"
    task = small(tmp_path, train=TRAIN | {"steps": 30}, checkpoint={"every_steps": 10})
    with ImdsStandIn() as imds:
        imds.set_reply("api/token", reply)
        node = customized(tmp_path / "ahead", ahead) | {"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}
        with agents(task, 2, node) as gang:
            assert ended_as_one(gang).outcome == "finished"
        assert {asked.status for asked in imds.requests} == {reply.status}
    assert incidents(task) == ()
    assert {e.node: e.answering for e in events_of(task) if isinstance(e, NoticeSources)}[1] == []
    ready = {e.rank: e.t for e in events_of(task) if isinstance(e, WorkerReady) and e.phase == "first_step"}
    assert ready[1] - ready[0] == pytest.approx(100, abs=20)
    assert [ref.step for ref in counted_commits(read_history(job_store(task.root, task.job)))] == [10, 20, 30]


def test_a_machine_that_is_far_slower_is_named_before_the_first_step(tmp_path: Path) -> None:
    """All that the last node's processes do takes eight times the time on a core, as they see it."""
    slowly = "import time\nreal = time.thread_time\ntime.thread_time = lambda: 8 * real()\n"
    task = small(tmp_path, train=LONG)
    with agents(task, NODES, customized(tmp_path / "slow", slowly)) as gang:
        outcome = ended_as_one(gang)
    named = "rank 2 on node 2 is not fit to train, another machine may be: a matrix product takes "
    assert outcome.outcome == "failed"
    assert outcome.message.startswith(named)
    assert [e.rank for e in events_of(task) if isinstance(e, NodeChecked) and e.problem] == [2]
    assert not [e for e in events_of(task) if e.kind == "step"]
    the_only(task, "unfit", 2, 2)
