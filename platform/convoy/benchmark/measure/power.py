"""The power of a GPU and how busy it is, as its driver reports through NVML. Imports no torch."""

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

SAMPLE_SECONDS = 0.1
"""Interval of samples. The driver samples less often: its figures are of the last sixth of a second, or second."""


class Gpu(Protocol):
    """One GPU. Each method returns None where this GPU or its driver does not report it."""

    def energy_millijoules(self) -> int | None:
        """Since the driver was loaded: only differences are meaningful."""

    def power_milliwatts(self) -> int | None:
        """Power of the whole board."""

    def utilisation_percent(self) -> int | None:
        """Share of the driver's last period in which a kernel ran."""


@dataclass
class Used:
    """Use of one GPU, over all turns so far with complete figures."""

    seconds: float = 0.0
    joules: float = 0.0
    utilisation: list[float] = field(default_factory=list)
    """Samples, from 0 to 1."""
    why: str = ""
    """Why there is no energy; empty: there is."""

    @property
    def watts(self) -> float | None:
        """Mean power; None: some turn has no energy."""
        return self.joules / self.seconds if self.seconds and not self.why else None


class Meter:
    """Measures one GPU from `begin` to `end`; meanwhile a thread samples what the driver has no counter for."""

    def __init__(self, gpu: Gpu, clock: Callable[[], float] = time.perf_counter, every: float = SAMPLE_SECONDS) -> None:
        self._gpu = gpu
        self._clock = clock
        self._every = every
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        self._watts: list[float] = []
        self._busy: list[float] = []
        self._stop.clear()
        self._thread = threading.Thread(target=self._sample, name="power", daemon=True)
        self._began, self._energy = self._clock(), self._gpu.energy_millijoules()
        self._thread.start()

    def end(self, used: Used) -> None:
        """Add what was used since `begin`."""
        energy, ended = self._gpu.energy_millijoules(), self._clock()
        assert self._thread is not None
        self._stop.set()
        self._thread.join()
        seconds = ended - self._began
        joules = energy_joules(self._energy, energy, self._watts, seconds)
        used.utilisation += self._busy
        if joules is None:
            used.why = "the GPU reports neither energy nor power"
            return
        used.seconds += seconds
        used.joules += joules

    def _sample(self) -> None:
        while True:
            power, busy = self._gpu.power_milliwatts(), self._gpu.utilisation_percent()
            self._watts += [] if power is None else [power / 1e3]
            self._busy += [] if busy is None else [busy / 100]
            if self._stop.wait(self._every):
                return


def energy_joules(before: int | None, after: int | None, watts: list[float], seconds: float) -> float | None:
    """Energy between two readings of the counter in millijoules; without a counter, or if it was reset because the
    driver was loaded again, from samples of the power. None: there are no samples either."""
    if before is not None and after is not None and after >= before:
        return (after - before) / 1e3
    return statistics.fmean(watts) * seconds if watts else None


class NvmlGpu:
    """A GPU through `nvidia-ml-py`."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """nvml: the module `pynvml`. uuid: as CUDA reports it, with or without `GPU-`. Raises its NVMLError."""
        self._nvml = nvml
        nvml.nvmlInit()
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")

    def energy_millijoules(self) -> int | None:
        return self._query(self._nvml.nvmlDeviceGetTotalEnergyConsumption)

    def power_milliwatts(self) -> int | None:
        return self._query(self._nvml.nvmlDeviceGetPowerUsage)

    def utilisation_percent(self) -> int | None:
        rates = self._query(self._nvml.nvmlDeviceGetUtilizationRates)
        return None if rates is None else rates.gpu

    def _query(self, function: Callable[[Any], Any]) -> Any:
        try:
            return function(self._handle)
        except self._nvml.NVMLError:  # e.g. not supported by this GPU, or by a slice of one
            return None


def nvml_gpu(uuid: str | None) -> tuple[NvmlGpu | None, str]:
    """The GPU, or why its power cannot be measured. uuid: of this rank's GPU; None: it has none."""
    if uuid is None:
        return None, "no GPU, so no power is measured"
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed: pip install 'metaflow-convoy[nvml]'"
    try:
        return NvmlGpu(pynvml, uuid), ""
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
