"""What a GPU draws between two moments, with one that was made up."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from convoy.benchmark.measure.power import Meter, NvmlGpu, Used, energy_joules, nvml_gpu
from tests.benchmark.gpus import Fake


def measured(gpu: Fake, turns: int = 1) -> Used:
    """By a clock of which two readings are two seconds apart."""
    used, meter = Used(), Meter(gpu, clock=itertools.count(0.0, 2.0).__next__)
    for _ in range(turns):
        meter.begin()
        meter.end(used)
    return used


def test_the_counter_tells_the_energy_and_its_mean_power() -> None:
    used = measured(Fake([1_000_000, 1_000_500, 2_000_000, 2_001_500]), turns=2)
    assert (used.joules, used.seconds, used.watts) == (2.0, 4.0, 0.5)
    assert set(used.utilisation) == {0.8}


@pytest.mark.parametrize("energies", [[None, None], [5_000_000, 10], [None, 7]])
def test_without_a_counter_or_after_it_began_anew_samples_of_the_power_stand_in(energies: list[int | None]) -> None:
    used = measured(Fake(energies))
    assert (used.joules, used.watts) == (600.0, 300.0)


def test_a_gpu_that_tells_nothing_has_no_power_and_says_so() -> None:
    used = measured(Fake([None] * 4, power=None, busy=None), turns=2)
    assert used.watts is None
    assert used.utilisation == []
    assert "neither" in used.why


def test_one_turn_without_energy_leaves_none_for_all() -> None:
    used, meter = Used(), Meter(gpu := Fake([0, 1000, None, None, 0, 1000]))
    for power in (300_000, None, 300_000):
        gpu.power = power
        meter.begin()
        meter.end(used)
    assert used.watts is None


def test_every_turn_is_looked_at_however_short_it_is() -> None:
    gpu = Fake([0] * 10)
    measured(gpu, turns=5)
    assert gpu.looks >= 5


def test_energy_between_two_readings() -> None:
    assert energy_joules(2_500, 4_000, [], 3.0) == 1.5
    assert energy_joules(None, 4_000, [100.0, 200.0], 3.0) == 450.0
    assert energy_joules(4_000, 2_500, [], 3.0) is None


class NvmlError(Exception):
    """As pynvml's."""


def a_nvml(**functions: Any) -> SimpleNamespace:
    asked: list[str] = []

    def by_uuid(uuid: str) -> str:
        asked.append(uuid)
        return "handle"

    return SimpleNamespace(
        **{"NVMLError": NvmlError, "nvmlInit": lambda: None, "nvmlDeviceGetHandleByUUID": by_uuid, "asked": asked}
        | functions
    )


def test_nvml_is_asked_for_the_gpu_of_this_rank_in_its_own_units() -> None:
    nvml = a_nvml(
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: {"handle": 1234}[handle],
        nvmlDeviceGetPowerUsage=lambda handle: 250_000,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=97, memory=40),
    )
    gpu = NvmlGpu(nvml, "e2b5c2ea-5f0f-4b3a-9d1e-0c7c3a6b5d4f")
    assert nvml.asked == ["GPU-e2b5c2ea-5f0f-4b3a-9d1e-0c7c3a6b5d4f"]
    assert (gpu.energy_millijoules(), gpu.power_milliwatts(), gpu.utilisation_percent()) == (1234, 250_000, 97)
    NvmlGpu(nvml, "GPU-x")
    assert nvml.asked[-1] == "GPU-x"


def test_what_a_gpu_does_not_support_is_none() -> None:
    def refused(handle: str) -> int:
        raise NvmlError("Not Supported")

    names = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates")
    gpu = NvmlGpu(a_nvml(**dict.fromkeys(names, refused)), "x")
    assert (gpu.energy_millijoules(), gpu.power_milliwatts(), gpu.utilisation_percent()) == (None, None, None)


def test_why_there_is_nothing_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvml_gpu(None) == (None, "no GPU, so no power is measured")
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    gpu, why = nvml_gpu("x")
    assert gpu is None
    assert "metaflow-convoy[nvml]" in why

    def refused() -> None:
        raise NvmlError("Driver Not Loaded")

    monkeypatch.setitem(__import__("sys").modules, "pynvml", a_nvml(nvmlInit=refused))
    assert nvml_gpu("x") == (None, "NVML: Driver Not Loaded")
