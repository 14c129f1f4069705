"""What is read of GPUs, from an NVML that was made up."""

import sys
from pathlib import Path
from typing import Any

import pytest

from convoy.gang.telemetry import gpus
from convoy.gang.telemetry.gpus import GpuReading, NvmlUnavailable, visible_gpus
from tests.gang.telemetry.fake_nvml import fake_nvml, refused


@pytest.fixture(autouse=True)
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    return tmp_path


def read_with(monkeypatch: pytest.MonkeyPatch, nvml: Any, environ: dict[str, str] | None = None) -> list[GpuReading]:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return [gpu.read() for gpu in visible_gpus(environ or {})]


def test_a_reading_has_plain_units_and_names_what_keeps_the_clock_down(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = read_with(monkeypatch, fake_nvml())
    assert first == GpuReading(0, 0.90, 60 * 2**30, 80 * 2**30, 650.5, 70.0, 1.98e9, ())
    assert (second.index, second.utilisation, second.throttled) == (1, 0.91, ("thermal slowdown by hardware",))


def test_what_a_gpu_does_not_support_is_none_and_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetCurrentClocksEventReasons")
    missing = dict.fromkeys((*names, "nvmlDeviceGetCurrentClocksThrottleReasons"), refused)
    (reading,) = read_with(monkeypatch, fake_nvml(1, **missing))
    assert reading == GpuReading(0, None, 60 * 2**30, 80 * 2**30, None, 70.0, 1.98e9, ())


def test_an_older_driver_is_asked_by_the_older_name(monkeypatch: pytest.MonkeyPatch) -> None:
    older = {
        "nvmlDeviceGetCurrentClocksEventReasons": refused,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x84,
    }
    (reading,) = read_with(monkeypatch, fake_nvml(1, **older))
    assert reading.throttled == ("power cap", "power brake")


def test_what_an_older_pynvml_lacks_is_none_or_asked_by_the_older_name(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = fake_nvml(1, nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x04)
    del nvml.nvmlDeviceGetCurrentClocksEventReasons, nvml.nvmlDeviceGetPowerUsage
    (reading,) = read_with(monkeypatch, nvml)
    assert reading == GpuReading(0, 0.90, 60 * 2**30, 80 * 2**30, None, 70.0, 1.98e9, ("power cap",))
    del nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    assert read_with(monkeypatch, nvml)[0].throttled == ()


@pytest.mark.parametrize(
    ("visible", "utilisations"),
    [(None, [0.90, 0.91]), ("1", [0.91]), ("1,0", [0.91, 0.90]), ("GPU-1", [0.91]), ("0,-1,1", [0.90]), ("0,7", [0.90]),
     ("", []), ("-1", [])],
)  # fmt: skip
def test_only_the_gpus_that_workers_see_are_read_in_their_order(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, utilisations: list[float]
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [reading.utilisation for reading in read_with(monkeypatch, fake_nvml(), environ)] == utilisations


@pytest.mark.parametrize(
    ("nvml", "why"),
    [
        (None, "nvidia-ml-py is not installed: pip install 'metaflow-convoy[nvml]'"),
        (fake_nvml(nvmlInit=refused), "NVML: Not Supported"),
    ],
)
def test_gpus_that_cannot_be_asked_are_reported_only_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch, devices: Path, nvml: Any, why: str
) -> None:
    with pytest.raises(NvmlUnavailable) as raised:
        read_with(monkeypatch, nvml)
    assert str(raised.value) == why
    (devices / "nvidia0").unlink()
    assert read_with(monkeypatch, nvml) == []
