"""One node's gang with real workers: how it ends, what it says, and that it leaves nothing behind."""

import os
import signal
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from convoy.checkpoint.commits import read_commit
from convoy.checkpoint.verify.marks import verified_in
from convoy.config.errors import ConfigError
from convoy.config.loader import resolve
from convoy.config.run import RunConfig
from convoy.gang import agent
from convoy.gang.agent import Gang, settle_param_dtype
from convoy.gang.task import EXPECTED, Task
from convoy.gang.telemetry.sampler import HardwareSampler
from convoy.gang.workers.processes import parents_by_pid
from convoy.job.events.hardware import HardwareSampled
from convoy.job.events.registry import FailureDetected, GenerationStarted, Restored, StepDone, Stopping, WorkerExited
from convoy.job.generations import form_generation
from convoy.job.heartbeat import LIVE
from convoy.job.lineage import CommitRef, counted_commits, read_history
from convoy.job.record import ensure_record, job_store, keep_config, with_recorded_dtype
from convoy.storage import Store, StoreUnavailable
from convoy.storage.log import FileSink
from tests.gang.tasks import (
    a_node,
    a_script,
    a_task,
    agents,
    alive,
    descendants,
    events_of,
    outcome_of,
    pid_of,
    run_gang,
    wait_for,
    wait_for_step,
)

LONG = {"steps": 100_000, "threads_per_rank": 1}
CUSTOM = {"build": "tests.gang.models:build_with_a_child", "vocab_size": 257, "max_sequence_length": 32}


@pytest.mark.slow
def test_what_a_worker_started_ends_with_it(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), model=CUSTOM, train={"steps": 60, "threads_per_rank": 1})
    with Gang(task, a_node(nproc=1)) as gang:
        tree = wait_for("a grandchild", lambda: _with_grandchild(gang))
        assert outcome_of(gang).outcome == "finished"
        assert not alive(tree)  # nor its child, which would have gone on


def test_the_free_space_of_a_root_with_a_scheme_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "HardwareSampler", partial(HardwareSampler, every_seconds=0.01))
    with Gang(a_task(f"file://{tmp_path}"), a_node(nproc=1)).sampler as sampler:
        wait_for("free space", lambda: sampler.newest is not None and sampler.newest.disk_free_bytes)


def test_workers_die_with_their_agent(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), train=LONG)
    with agents(task, 1) as (killed,):  # which fails where a process is left
        wait_for_step(task, 2)
        killed.signal(signal.SIGKILL)
        assert len(killed.tree) >= 2


def test_bad_input_is_told_in_one_line_without_a_traceback(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), model={"init_from": str(tmp_path / "nowhere")})

    outcome = run_gang(task, a_node())

    assert outcome.outcome == "failed"
    assert "\n" not in outcome.message
    assert str(tmp_path / "nowhere") in outcome.message
    exits = [e for e in events_of(task) if isinstance(e, WorkerExited)]
    assert {e.exit_code for e in exits} == {EXPECTED}
    assert "Traceback" not in exits[0].log_tail


@pytest.mark.slow
def test_a_bug_is_tried_three_times_and_told_with_its_last_lines(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), model=CUSTOM | {"build": "tests.gang.models:build_wrongly"})

    outcome = run_gang(task, a_node(nproc=1))

    first, why, *rest = outcome.message.splitlines()
    assert first == "rank 0 on node 0 exited with code 1: RuntimeError: the layers do not fit"
    assert why == "the same failure at step 0, 3 times: it is not tried again"
    assert rest[0] == "its last lines:"
    assert [e.retryable for e in events_of(task) if e.kind == "failure_detected"] == [True, True, False]
    assert any("build_wrongly" in line for line in rest)


@pytest.mark.slow
def test_a_signal_to_one_worker_saves_and_stops_and_a_retry_goes_on(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), train=LONG)
    with Gang(task, a_node()) as gang:
        wait_for_step(task, 2)
        os.kill(pid_of(gang, 1), signal.SIGTERM)
        stopped = outcome_of(gang)

    (stopping,) = [e for e in events_of(task) if isinstance(e, Stopping)]
    (ref,) = counted_commits(read_history(gang.store))
    assert (stopped.outcome, stopping.reason, ref.step) == ("stopped", "requested", stopping.step)
    with Gang(task, a_node(attempt=1)) as again:
        assert again.generation.parent == ref


def test_a_second_live_run_is_refused_and_a_retry_of_the_same_run_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "TRAINING", "tests.gang.light")  # workers that only sleep: none is looked at
    task = a_task(str(tmp_path), train=LONG)
    with Gang(task, a_node(nproc=1)) as gang:
        with pytest.raises(ConfigError, match=r"job = job: run Flow/1 on .* is running it now"):
            Gang(task, a_node(nproc=1, run="Flow/2")).__enter__()
        with Gang(task, a_node(nproc=1, attempt=1)) as retry:
            assert retry.generation.generation == gang.generation.generation + 1


def test_a_gang_s_log_has_samples_of_the_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "TRAINING", "tests.gang.light")
    monkeypatch.setattr(agent, "HardwareSampler", partial(HardwareSampler, every_seconds=0.05))
    task = a_task(str(tmp_path), train=LONG)
    with Gang(task, a_node(nproc=1)) as gang:
        sampled = wait_for("a sample", lambda: [e for e in events_of(task) if isinstance(e, HardwareSampled)])
        newest = gang.sampler.newest
    assert (sampled[0].node, sampled[0].rank, sampled[0].generation) == (0, None, gang.generation.generation)
    assert newest is not None
    assert sampled[0].memory_total_bytes == newest.memory_total_bytes


@pytest.mark.slow
def test_two_nodes_form_one_generation(tmp_path: Path) -> None:
    task = a_task(str(tmp_path), train={"steps": 3})
    with agents(task, 2) as gang:
        assert {node.outcome().outcome for node in gang} == {"finished"}
    store = job_store(task.root, task.job)
    assert list(store.sizes("generations/")) == ["generations/000001.json"]
    assert list(store.sizes("logs/")) == ["logs/000001/00000/rank00000.log", "logs/000001/00001/rank00001.log"]
    started = [e for e in events_of(task) if isinstance(e, GenerationStarted)]
    assert sorted((e.node, e.nodes, e.world_size) for e in started) == [(0, 2, 2), (1, 2, 2)]
    assert {e.rank for e in events_of(task) if e.kind == "memory_peak"} == {0, 1}


@pytest.mark.slow
def test_the_end_of_what_workers_are_forked_from_is_told_and_the_gang_goes_on(tmp_path: Path) -> None:
    task, others = a_task(str(tmp_path), train={"steps": 80, "threads_per_rank": 1}), descendants(os.getpid())
    with Gang(task, a_node()) as gang:
        pid = pid_of(gang, 0)
        forked_from = parents_by_pid()[pid]
        wait_for_step(task, 1)
        tree = descendants(os.getpid()) - others
        os.kill(forked_from, signal.SIGKILL)
        outcome = outcome_of(gang)

    assert outcome.outcome == "finished"
    (failed,) = [e for e in events_of(task) if isinstance(e, FailureDetected)]
    assert (failed.signal, failed.action) == ("SIGKILL", "restart")
    assert failed.reason == "the process that workers are forked from was killed by SIGKILL"
    wait_for("the end of all", lambda: len(alive(tree)) == 0)


def test_a_gang_that_cannot_form_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "TRAINING", "tests.gang.light")
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

    task = a_task(str(tmp_path), model={"init_from": str(tmp_path / "nowhere")})
    with Gang(task, a_node(nproc=1)) as gang:
        monkeypatch.setattr(FileSink, "write", refuse)
        outcome = outcome_of(gang)

    assert str(tmp_path / "nowhere") in outcome.message
    assert "the event log is out of reach: no space left" in outcome.message


@pytest.mark.parametrize(
    ("cores", "nodes", "shares_host", "configured", "threads"),
    [(64, 2, True, None, 8), (64, 2, False, None, 16), (2, 1, True, None, 1), (64, 1, True, 5, 5)],
)
def test_cores_are_shared_by_the_ranks_of_a_host(
    monkeypatch: pytest.MonkeyPatch, cores: int, nodes: int, shares_host: bool, configured: int | None, threads: int
) -> None:
    monkeypatch.setattr("convoy.gang.task.usable_cores", lambda: cores)
    config = RunConfig.model_validate({"train": {"threads_per_rank": configured}})
    assert replace(a_node(nproc=4, nodes=nodes), shares_host=shares_host).threads_per_rank(config) == threads


def test_nodes_on_one_host_do_not_share_places() -> None:
    places = [a_node(nproc=2, index=node, nodes=2).position_of(local, 1) for node in (0, 1) for local in (0, 1)]

    assert [(p.rank, p.node, p.local_rank, p.host_rank) for p in places] == [
        (0, 0, 0, 0), (1, 0, 1, 1), (2, 1, 0, 2), (3, 1, 1, 3)
    ]  # fmt: skip
    assert {p.host_ranks for p in places} == {4}


def _with_grandchild(gang: Gang) -> set[int]:
    pid = pid_of(gang, 0)
    tree = descendants(pid)
    return tree | {pid} if tree else set()


NEVER = "convoy.no_such_module"


def settled_for(config: RunConfig, store: Store) -> Task:
    return settle_param_dtype(Task(config, "blue", "", "", "data", None), a_node(), store)


def formed_with(store: Store, dtype: str) -> None:
    config = resolve({}, {"train": {"param_dtype": dtype}})
    ensure_record(store, "blue", config, "data")
    form_generation(
        store, formation="f", nodes=1, world_size=1, config_hash=keep_config(store, config), rendezvous="h:1"
    )


@pytest.mark.slow
def test_a_new_job_trains_in_the_type_that_is_faster_on_this_cpu(
    local: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # without instructions for bf16, which is then slower on any CPU
    task = settled_for(resolve({}, {}), local)
    choice = task.dtype_choice
    assert choice is not None
    assert choice.flops["fp32"] > choice.flops["bf16"] > 0
    assert task.config.train.param_dtype == choice.param_dtype == "fp32"
    assert "train.param_dtype = auto: this job trains in fp32" in capfd.readouterr().out


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_job_that_has_trained_keeps_its_type_and_measures_nothing(
    local: Store, monkeypatch: pytest.MonkeyPatch, dtype: str
):
    monkeypatch.setattr(agent, "MEASURE", NEVER)
    formed_with(local, dtype)
    task = settled_for(resolve({}, {}), local)
    assert (task.config.train.param_dtype, task.dtype_choice) == (dtype, None)
    assert with_recorded_dtype(resolve({}, {}), local).train.param_dtype == dtype


def test_a_type_that_the_configuration_names_is_taken_as_it_is(local: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agent, "MEASURE", NEVER)
    formed_with(local, "bf16")
    named = resolve({}, {"train": {"param_dtype": "fp32"}})
    assert settled_for(named, local).config == named


def test_a_measurement_that_fails_is_one_line_that_says_what_to_set(local: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agent, "MEASURE", NEVER)
    line = r"^train.param_dtype = auto: the measurement failed \(.*\); set bf16 or fp32$"
    with pytest.raises(ConfigError, match=line):
        settled_for(resolve({}, {}), local)


def test_an_agent_that_cannot_read_the_recorded_type_leaves_the_gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def gone(*_: object) -> RunConfig:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(agent, "with_recorded_dtype", gone)
    with pytest.raises(StoreUnavailable), Gang(a_script(tmp_path, ""), a_node(nproc=1)):
        pass
    assert "peers" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.slow
def test_a_job_in_a_bucket_goes_on_with_fewer_ranks(s3_uri: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = {"cache": str(tmp_path_factory.mktemp("cache"))}
    first = a_task(s3_uri, train={"steps": 3, "threads_per_rank": 1}, data=data)
    second = a_task(s3_uri, train={"steps": 5, "threads_per_rank": 1}, data=data)

    assert run_gang(first, a_node(nproc=2)).outcome == "finished"
    assert run_gang(second, a_node(nproc=1, attempt=1)).outcome == "finished"

    store = job_store(s3_uri, "job")
    commits = [read_commit(store, CommitRef(generation=g, step=s)) for g, s in ((1, 3), (2, 5))]
    assert [c.world_size for c in commits] == [2, 1]
    assert verified_in(store) == {commit.ref for commit in commits}  # by another rank each, before the gangs ended
    events = events_of(second)
    assert [(e.from_generation, e.step) for e in events if isinstance(e, Restored)] == [(1, 3)]
    assert [e.step for e in events if isinstance(e, StepDone)] == [1, 2, 3, 4, 5]
    assert len(store.sizes("logs/")) == 3
