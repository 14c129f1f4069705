"""GPUs as NVML reports them: utilisation, memory, power, temperature, clock, and what slows the clock down."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from convoy.config.errors import missing_extra
from convoy.job.events.hardware import ThrottleReason

DEVICES = Path("/dev")

REASONS: dict[int, ThrottleReason] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}
"""Bits of NVML's mask that stand for a clock below what the GPU was asked for. Bits that are left out say that it is
idle or runs at the clock that somebody set. Source: nvml.h, `nvmlClocksThrottleReason*`."""

T = TypeVar("T")


class NvmlUnavailable(Exception):
    """No GPU can be asked; the text says why in one line."""


@dataclass(frozen=True)
class GpuReading:
    """What one GPU reported at one moment. None: it does not report this, as a slice of a GPU may not."""

    index: int
    """As the processes here number it."""
    utilisation: float | None
    """Share of the driver's last period, of up to a second, in which a kernel ran, from 0 to 1."""
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    temperature_celsius: float | None
    sm_clock_hertz: float | None
    throttled: tuple[ThrottleReason, ...]
    """What keeps the clock down now."""


class Gpu:
    """One GPU of this host."""

    def __init__(self, nvml: Any, handle: Any, index: int) -> None:
        """nvml: the module pynvml, initialised. handle: of its own. index: as the processes here number the GPU."""
        self._nvml, self._handle, self._index = nvml, handle, index

    def utilisation(self) -> float | None:
        """As in `GpuReading`."""
        rates = self._ask(lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle))
        return None if rates is None else float(rates.gpu) / 100

    def read(self) -> GpuReading:
        """All figures of this moment. Takes a millisecond or so."""
        nvml, handle = self._nvml, self._handle
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        milliwatts = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        celsius = self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        megahertz = self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        mask = self._ask(lambda: _throttle_mask(nvml, handle)) or 0
        return GpuReading(
            index=self._index,
            utilisation=self.utilisation(),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_watts=None if milliwatts is None else milliwatts / 1000,
            temperature_celsius=None if celsius is None else float(celsius),
            sm_clock_hertz=None if megahertz is None else megahertz * 1e6,
            throttled=tuple(reason for bit, reason in REASONS.items() if mask & bit),
        )

    def _ask(self, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except (self._nvml.NVMLError, AttributeError):  # not supported by this GPU or a slice of it, or by this pynvml
            return None


def gpu_by_uuid(uuid: str) -> Gpu:
    """uuid: as CUDA reports it, with or without `GPU-`. Raises NvmlUnavailable."""
    nvml = _initialised_nvml()
    try:
        return Gpu(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"), 0)
    except nvml.NVMLError as error:
        raise NvmlUnavailable(f"NVML: {error}") from None


def visible_gpus(environ: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that a process with this environment sees, in its order; none on a host without GPUs. Raises
    NvmlUnavailable where there are some that cannot be asked.

    NVML numbers GPUs by their place on the bus, CUDA by speed: on a host whose GPUs are alike that is the same.
    """
    words = environ.get("CUDA_VISIBLE_DEVICES")
    if words is not None and words.split(",")[0].strip() in ("", "-1"):
        return []
    try:
        nvml = _initialised_nvml()
        handles = _all_handles(nvml) if words is None else _named_handles(nvml, words)
    except NvmlUnavailable:
        if not has_gpu_devices():
            return []
        raise
    return [Gpu(nvml, handle, index) for index, handle in enumerate(handles)]


def has_gpu_devices() -> bool:
    """Whether the driver of NVIDIA made devices on this host."""
    return any(device.name[6:].isdigit() for device in DEVICES.glob("nvidia[0-9]*"))


def _initialised_nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        raise NvmlUnavailable(missing_extra("nvidia-ml-py", "nvml")) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailable(f"NVML: {error}") from None
    return pynvml


def _all_handles(nvml: Any) -> list[Any]:
    try:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        raise NvmlUnavailable(f"NVML: {error}") from None


def _named_handles(nvml: Any, words: str) -> list[Any]:
    """words: of CUDA_VISIBLE_DEVICES, numbers or UUIDs; as CUDA does, what follows an unknown one does not count."""
    handles: list[Any] = []
    with contextlib.suppress(nvml.NVMLError):
        for word in (word.strip() for word in words.split(",")):
            if not (word.isdigit() or word.startswith(("GPU-", "MIG-"))):
                break
            by_number = nvml.nvmlDeviceGetHandleByIndex
            handles.append(by_number(int(word)) if word.isdigit() else nvml.nvmlDeviceGetHandleByUUID(word))
    return handles


def _throttle_mask(nvml: Any, handle: Any) -> int:
    """The older of its two names will go away with CUDA 14; drivers and pynvml before CUDA 12 know no other."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (nvml.NVMLError, AttributeError):
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
