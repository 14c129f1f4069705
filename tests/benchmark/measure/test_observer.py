"""The utilisation of a GPU, from an NVML that was made up."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from convoy.benchmark.measure.observer import gpu_sampling, nvml_utilisation_reader


def test_every_block_is_sampled_however_short_it_is() -> None:
    samples: list[float] = []
    for _ in range(5):
        with gpu_sampling(lambda: 0.8, samples):
            pass
    assert len(samples) >= 5
    assert set(samples) == {0.8}


def test_a_gpu_that_reports_nothing_has_no_samples() -> None:
    samples: list[float] = []
    with gpu_sampling(lambda: None, samples):
        pass
    assert samples == []


class NvmlError(Exception):
    """As pynvml's."""


def refused(*_: Any) -> Any:
    raise NvmlError("Driver Not Loaded")


def a_nvml(**functions: Any) -> SimpleNamespace:
    """Knows one GPU, which is busy 97 % of the time."""

    def handle(uuid: str) -> str:
        return {"GPU-e2b5c2ea": "handle"}[uuid]

    def rates(handle: str) -> SimpleNamespace:
        return {"handle": SimpleNamespace(gpu=97, memory=40)}[handle]

    known = {"nvmlDeviceGetHandleByUUID": handle, "nvmlDeviceGetUtilizationRates": rates}
    return SimpleNamespace(**{"NVMLError": NvmlError, "nvmlInit": lambda: None, **known, **functions})


@pytest.mark.parametrize("uuid", ["e2b5c2ea", "GPU-e2b5c2ea"])
def test_nvml_reports_the_gpu_of_this_rank_in_percent(monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", a_nvml())
    utilisation, why = nvml_utilisation_reader(uuid)
    assert (utilisation(), why) == (0.97, "")


def test_what_a_gpu_does_not_support_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", a_nvml(nvmlDeviceGetUtilizationRates=refused))
    utilisation, _ = nvml_utilisation_reader("e2b5c2ea")
    assert utilisation() is None


@pytest.mark.parametrize(
    ("uuid", "nvml", "why"),
    [
        (None, a_nvml(), "no GPU"),
        ("e2b5c2ea", None, "nvidia-ml-py is not installed: pip install 'metaflow-convoy[nvml]'"),
        ("e2b5c2ea", a_nvml(nvmlInit=refused), "NVML: Driver Not Loaded"),
    ],
)
def test_why_utilisation_cannot_be_measured(
    monkeypatch: pytest.MonkeyPatch, uuid: str | None, nvml: Any, why: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert nvml_utilisation_reader(uuid) == (None, why)
