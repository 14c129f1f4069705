"""Which type `train.param_dtype: auto` becomes: measured for a new job, and never changed for one that has trained."""

import threading
from pathlib import Path

import pytest

from convoy.config.errors import ConfigError
from convoy.config.loader import resolve
from convoy.config.run import RunConfig
from convoy.gang import agent, param_dtype
from convoy.gang.agent import Gang
from convoy.gang.param_dtype import with_settled_dtype
from convoy.gang.task import Task
from convoy.job.generations import form_generation
from convoy.job.record import ensure_record, job_store, keep_config, with_recorded_dtype
from convoy.storage import Store, StoreUnavailable
from tests.gang.scripts import a_script
from tests.gang.tasks import a_node

NEVER = "convoy.no_such_module"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return job_store(str(tmp_path), "blue")


def settled_for(config: RunConfig, store: Store) -> Task:
    return with_settled_dtype(Task(config, "blue", "", "", "data", None), a_node(), store)


def formed_with(store: Store, dtype: str) -> None:
    config = resolve({}, {"train": {"param_dtype": dtype}})
    ensure_record(store, "blue", config, "data")
    form_generation(
        store, formation="f", nodes=1, world_size=1, config_hash=keep_config(store, config), rendezvous="h:1"
    )


def test_a_new_job_trains_in_the_type_that_is_faster_on_this_cpu(
    store: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # without instructions for bf16, which is then slower on any CPU
    task = settled_for(resolve({}, {}), store)
    choice = task.dtype_choice
    assert choice is not None
    assert choice.flops["fp32"] > choice.flops["bf16"] > 0
    assert task.config.train.param_dtype == choice.param_dtype == "fp32"
    assert "train.param_dtype = auto: this job trains in fp32" in capfd.readouterr().out


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_job_that_has_trained_keeps_its_type_and_measures_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, dtype: str
):
    monkeypatch.setattr(param_dtype, "MEASURE", NEVER)
    formed_with(store, dtype)
    task = settled_for(resolve({}, {}), store)
    assert (task.config.train.param_dtype, task.dtype_choice) == (dtype, None)
    assert with_recorded_dtype(resolve({}, {}), store).train.param_dtype == dtype


def test_a_type_that_the_configuration_names_is_taken_as_it_is(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(param_dtype, "MEASURE", NEVER)
    formed_with(store, "bf16")
    named = resolve({}, {"train": {"param_dtype": "fp32"}})
    assert settled_for(named, store).config == named


def test_a_measurement_that_fails_is_one_line_that_says_what_to_set(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(param_dtype, "MEASURE", NEVER)
    line = r"^train.param_dtype = auto: the measurement failed \(.*\); set bf16 or fp32$"
    with pytest.raises(ConfigError, match=line):
        settled_for(resolve({}, {}), store)


def test_an_agent_that_cannot_read_the_recorded_type_leaves_the_gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def gone(*_: object) -> RunConfig:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(agent, "with_recorded_dtype", gone)
    with pytest.raises(StoreUnavailable), Gang(a_script(tmp_path, ""), a_node(nproc=1)):
        pass
    assert "peers" not in {thread.name for thread in threading.enumerate()}
