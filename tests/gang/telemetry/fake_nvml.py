"""An NVML that was made up, with the functions of pynvml that are used: no figure of it was measured."""

from types import SimpleNamespace
from typing import Any


class NvmlError(Exception):
    """As pynvml's."""


def refused(*_: Any) -> Any:
    raise NvmlError("Not Supported")


def fake_nvml(gpus: int = 2, **functions: Any) -> SimpleNamespace:
    """GPU i is busy for 90 + i percent, and GPU 1 is too hot. Handles are names: `GPU-0`, `GPU-1`."""
    known: dict[str, Any] = {
        "NVMLError": NvmlError,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_CLOCK_SM": 1,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: gpus,
        "nvmlDeviceGetHandleByIndex": lambda index: f"GPU-{index}" if index < gpus else refused(),
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=90 + int(handle[4:])),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 * 2**30, used=60 * 2**30, free=20 * 2**30),
        "nvmlDeviceGetPowerUsage": lambda handle: 650_500,
        "nvmlDeviceGetTemperature": lambda handle, sensor: {0: 70 + int(handle[4:])}[sensor],
        "nvmlDeviceGetClockInfo": lambda handle, clock: {1: 1980}[clock],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x41 if handle == "GPU-1" else 0x1,
    }
    return SimpleNamespace(**{**known, **functions})
