"""Clocks, and what is told of the machine."""

import time
from importlib import metadata
from typing import Any

import pytest
import torch
import torch.distributed as dist

import convoy
from convoy.config.engine import EngineConfig
from convoy.training.measure.clock import HostClock, OwnTime, clock_for, own_time_for
from convoy.training.measure.machine import device_name, environment, memory_peak, random_tensor
from convoy.training.process_groups import Ranks
from tests.training.job import place
from tests.training.sharded import alone


def test_each_moment_belongs_to_the_phase_marked_after_it() -> None:
    clock = clock_for(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    clock.start()
    began = time.perf_counter()
    time.sleep(0.01)
    clock.end_phase("data")
    clock.end_phase("forward")
    time.sleep(0.01)
    clock.end_phase("backward")
    clock.end_phase("forward")
    total = time.perf_counter() - began

    seconds = clock.phase_seconds()

    assert set(seconds) == {"data", "forward", "backward"}
    assert min(seconds["data"], seconds["backward"]) >= 0.01
    assert sum(seconds.values()) == pytest.approx(total, abs=0.02)


def test_until_a_rank_meets_the_others_all_time_is_its_own_and_later_what_it_works() -> None:
    own = own_time_for(torch.device("cpu"))
    assert isinstance(own, OwnTime)
    own.start()
    time.sleep(0.05)
    own.meet_others()
    began = time.thread_time()
    while time.thread_time() - began < 0.05:
        pass
    time.sleep(0.5)  # as a rank does while it waits

    assert 0.1 <= own.own_seconds() < 0.4


def test_a_step_after_the_other_is_measured_anew() -> None:
    own = OwnTime()
    own.start()
    time.sleep(0.05)
    own.meet_others()
    own.start()
    own.meet_others()

    assert own.own_seconds() < 0.04


@alone
def test_the_machine_is_told_by_name_and_versions() -> None:
    told = environment(_ranks(), "bf16", 0.5)
    assert told.versions["convoy"] == convoy.__version__
    assert told.versions["torch"] == torch.__version__
    assert told.device == device_name(torch.device("cpu")) != ""
    assert (told.threads, told.matmul_tflops, told.peak_tflops) == (torch.get_num_threads(), 0.5, None)
    assert told.engine == ""


@alone
def test_an_engine_of_another_library_is_named_with_its_version() -> None:
    zero = EngineConfig(name="deepspeed", settings={"zero_optimization": {"stage": 2}})
    told, version = environment(_ranks(), "bf16", engine=zero), metadata.version("deepspeed")
    assert (told.versions["deepspeed"], told.engine) == (version, f"DeepSpeed ZeRO-2 {version}")


@alone
def test_the_memory_peak_holds_what_was_allocated() -> None:
    size = 50_000_000
    block = torch.ones(size // 4)
    peak = memory_peak(_ranks(), 3)
    assert block.nbytes == size
    assert (peak.step, peak.device) == (3, "host")
    assert size < peak.bytes < 64 * 1024**3


def _ranks() -> Ranks:
    mesh = torch.distributed.init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
    group = dist.group.WORLD
    assert group is not None
    return Ranks(place(0, 1), torch.device("cpu"), mesh, group, group)


def test_numbers_are_made_in_the_type_in_which_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wider one they would take more of a GPU's memory than is free beside training."""
    made: list[torch.dtype] = []
    randn = torch.randn

    def seen(*args: Any, **kwargs: Any) -> torch.Tensor:
        x = randn(*args, **kwargs)
        made.append(x.dtype)
        return x

    monkeypatch.setattr(torch, "randn", seen)
    assert random_tensor(torch.device("cpu"), torch.bfloat16, 4).dtype == made[0]
    assert made == [torch.bfloat16]
