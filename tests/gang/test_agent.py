"""One node's gang with real workers: how it ends, what it says, and that it leaves nothing behind."""

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from convoy.config.errors import ConfigError
from convoy.events.types import GenerationEnded, GenerationStarted, Stopping, WorkerExited
from convoy.gang.agent import Gang, failure_message, place_of, threads_per_rank
from convoy.gang.assignment import EXPECTED
from convoy.job.lineage import lineage, read_history
from convoy.job.live import LIVE
from convoy.job.record import job_store
from convoy.storage import ObjectMissing, StoreUnavailable
from convoy.storage.posix_log import FileSink
from tests.gang.tasks import (
    a_node,
    a_task,
    alive,
    descendants,
    events_of,
    outcome_of,
    run_gang,
    wait_for,
    wait_for_step,
)

LONG = {"steps": 100_000, "threads_per_rank": 1}
CUSTOM = {"build": "tests.gang.models:build_with_a_child", "vocab_size": 257, "max_sequence_length": 32}


def test_a_killed_worker_ends_the_gang_with_its_name(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), train=LONG, checkpoint={"every_steps": 2})
    before = descendants(os.getpid())
    with Gang(task, a_node(nproc=3)) as gang:
        wait_for_step(task, 3)
        tree = descendants(os.getpid()) - before  # other tests may have left helpers of multiprocessing
        victim = gang._workers[1].process.pid
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        outcome = outcome_of(gang)
        took = time.monotonic() - began
        assert victim in tree
        assert alive(tree) == set()

    assert outcome.outcome == "failed"
    assert outcome.message.startswith("rank 1 on node 0 was killed by SIGKILL")
    assert took < 2.0  # it waited for no other cause
    (exited,) = [e for e in events_of(task) if isinstance(e, WorkerExited)]
    assert (exited.worker, exited.signal, exited.exit_code) == (1, "SIGKILL", None)
    assert [e.outcome for e in events_of(task) if isinstance(e, GenerationEnded)] == ["failed"]
    with pytest.raises(ObjectMissing):
        gang.store.read(LIVE)


def test_what_a_worker_started_ends_with_it(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), model=CUSTOM, train={"steps": 3, "threads_per_rank": 1})
    with Gang(task, a_node(nproc=1)) as gang:
        tree = wait_for("a grandchild", lambda: _with_grandchild(gang))
        assert outcome_of(gang).outcome == "finished"
        assert len(alive(tree)) == 1  # the worker ended, its child did not

    assert wait_for("the end of all", lambda: not alive(tree))


def test_workers_die_with_their_agent(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), train=LONG)
    agent = multiprocessing.get_context("fork").Process(target=run_gang, args=(task, a_node()))
    agent.start()
    wait_for_step(task, 2)
    assert agent.pid is not None
    tree = descendants(agent.pid)
    assert len(tree) >= 2

    agent.kill()
    agent.join()

    wait_for("the end of the workers", lambda: not alive(tree))


def test_bad_input_is_told_in_one_line_without_a_traceback(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), model={"init_from": str(tmp_path / "nowhere")})

    outcome = run_gang(task, a_node())

    assert outcome.outcome == "failed"
    assert "\n" not in outcome.message
    assert str(tmp_path / "nowhere") in outcome.message
    exits = [e for e in events_of(task) if isinstance(e, WorkerExited)]
    assert [e.exit_code for e in exits] == [EXPECTED]
    assert "Traceback" not in exits[0].log_tail


def test_a_bug_is_told_with_its_last_lines(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), model=CUSTOM | {"build": "tests.gang.models:build_wrongly"})

    outcome = run_gang(task, a_node(nproc=1))

    first, *rest = outcome.message.splitlines()
    assert first == "rank 0 on node 0 exited with code 1: RuntimeError: the layers do not fit"
    assert rest[0] == "its last lines:"
    assert any("build_wrongly" in line for line in rest)


def test_a_signal_to_one_worker_saves_and_stops_and_a_retry_goes_on(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), train=LONG)
    with Gang(task, a_node()) as gang:
        wait_for_step(task, 2)
        os.kill(gang._workers[1].process.pid, signal.SIGTERM)
        stopped = outcome_of(gang)

    (stopping,) = [e for e in events_of(task) if isinstance(e, Stopping)]
    (ref,) = lineage(read_history(gang.store))
    assert (stopped.outcome, stopping.reason, ref.step) == ("stopped", "requested", stopping.step)
    with Gang(task, a_node(attempt=1)) as again:
        assert again.generation.parent == ref


def test_a_second_live_run_is_refused_and_a_retry_of_the_same_run_is_not(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), train=LONG)
    with Gang(task, a_node(nproc=1)) as gang:
        with pytest.raises(ConfigError, match=r"job = job: run Flow/1 on .* is running it now"):
            Gang(task, a_node(nproc=1, run="Flow/2")).__enter__()
        with Gang(task, a_node(nproc=1, attempt=1)) as retry:
            assert retry.generation.generation == gang.generation.generation + 1


def test_two_nodes_form_one_generation(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), train={"steps": 3})
    other = multiprocessing.get_context("fork").Process(target=run_gang, args=(task, a_node(nproc=1, index=1, nodes=2)))
    other.start()

    outcome = run_gang(task, a_node(nproc=1, nodes=2))
    other.join()

    assert (outcome.outcome, other.exitcode) == ("finished", 0)
    store = job_store(task.root, task.job)
    assert list(store.sizes("generations/")) == ["generations/000001.json"]
    assert list(store.sizes("logs/")) == ["logs/000001/00000/rank00000.log", "logs/000001/00001/rank00001.log"]
    started = [e for e in events_of(task) if isinstance(e, GenerationStarted)]
    assert sorted((e.node, e.nodes, e.world_size) for e in started) == [(0, 2, 2), (1, 2, 2)]
    assert {e.rank for e in events_of(task) if e.kind == "memory_peak"} == {0, 1}


def test_a_gang_that_cannot_form_leaves_nothing(tmp_path: Path) -> None:
    task = a_task(str(tmp_path))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "generations").write_text("in the way")
    before = descendants(os.getpid())

    with pytest.raises(OSError):
        Gang(task, a_node()).__enter__()

    assert descendants(os.getpid()) == before
    assert not (tmp_path / "job" / LIVE).exists()


def test_a_log_that_cannot_be_written_does_not_hide_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StoreUnavailable("no space left")

    task = a_task(str(tmp_path), train=LONG)
    with Gang(task, a_node(nproc=1)) as gang:
        wait_for("a step", lambda: any(e.kind == "step" for e in events_of(task)))
        monkeypatch.setattr(FileSink, "write", refuse)
        os.kill(gang._workers[0].process.pid, signal.SIGKILL)
        outcome = outcome_of(gang)

    assert outcome.message.startswith("rank 0 on node 0 was killed by SIGKILL")
    assert "the event log is out of reach: no space left" in outcome.message


def test_cores_are_shared_by_the_ranks_of_a_host(tmp_path: Path) -> None:
    config = a_task(str(tmp_path), train={"threads_per_rank": None}).config
    apart = replace(a_node(nproc=4, nodes=2), shares_host=False)

    assert threads_per_rank(config, a_node(nproc=4, nodes=2), cores=lambda: 64) == 8
    assert threads_per_rank(config, apart, cores=lambda: 64) == 16
    assert threads_per_rank(config, a_node(nproc=4), cores=lambda: 2) == 1
    five = a_task(str(tmp_path), train={"threads_per_rank": 5}).config
    assert threads_per_rank(five, a_node(nproc=4), cores=lambda: 64) == 5


def test_nodes_on_one_host_do_not_share_places() -> None:
    places = [place_of(local, a_node(nproc=2, index=node, nodes=2), 1) for node in (0, 1) for local in (0, 1)]

    assert [(p.rank, p.node, p.local_rank, p.host_rank) for p in places] == [
        (0, 0, 0, 0), (1, 0, 1, 1), (2, 1, 0, 2), (3, 1, 1, 3)
    ]  # fmt: skip
    assert {p.host_ranks for p in places} == {4}


@pytest.mark.parametrize(
    ("exited", "text"),
    [
        (WorkerExited(worker=3, signal="SIGSEGV"), "rank 3 on node 1 was killed by SIGSEGV"),
        (WorkerExited(worker=3, exit_code=1, reason="E: x"), "rank 3 on node 1 exited with code 1: E: x"),
        (WorkerExited(worker=3, exit_code=EXPECTED, reason="a = 1: must be 2", log_tail="x"), "a = 1: must be 2"),
        (
            WorkerExited(worker=0, exit_code=9, log_tail="x\ny"),
            "rank 0 on node 1 exited with code 9\nits last lines:\n  x\n  y",
        ),
    ],
)
def test_the_first_cause_in_plain_words(exited: WorkerExited, text: str) -> None:
    assert failure_message(exited, node=1) == text


def _with_grandchild(gang: Gang) -> set[int]:
    tree = descendants(gang._workers[0].process.pid)
    return tree | {gang._workers[0].process.pid} if tree else set()
