"""Where a step's time goes. On a GPU phases are separated by CUDA events, since the host runs ahead of it."""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch

StepPhase = Literal["data", "exchange", "forward", "backward", "optimizer"]


@dataclass
class HostClock:
    """Seconds of wall time per phase since the last `start`."""

    on_mark: Callable[[], None] = lambda: None
    """Called at each mark."""
    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = 0.0

    def start(self) -> None:
        self.seconds = {}
        self._last = time.perf_counter()

    def end_phase(self, phase: StepPhase) -> None:
        """What passed since the last mark belongs to `phase`."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now
        self.on_mark()

    def phase_seconds(self) -> dict[str, float]:
        return self.seconds


@dataclass
class CudaClock:
    """Seconds of the GPU's stream per phase since the last `start`; host-only phases count the stream's idle time."""

    on_mark: Callable[[], None] = lambda: None
    _marks: list[tuple[StepPhase | None, torch.cuda.Event]] = field(default_factory=list)

    def start(self) -> None:
        self._marks = []
        self._record_event(None)

    def end_phase(self, phase: StepPhase) -> None:
        self._record_event(phase)
        self.on_mark()

    def phase_seconds(self) -> dict[str, float]:
        """Waits for the last mark."""
        seconds: dict[str, float] = {}
        self._marks[-1][1].synchronize()
        for (_, begin), (phase, end) in zip(self._marks, self._marks[1:], strict=False):
            assert phase is not None
            seconds[phase] = seconds.get(phase, 0.0) + begin.elapsed_time(end) / 1e3
        return seconds

    def _record_event(self, phase: StepPhase | None) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((phase, event))


class Clock(Protocol):
    """What a step reports about its phases."""

    def start(self) -> None: ...
    def end_phase(self, phase: StepPhase) -> None: ...
    def phase_seconds(self) -> dict[str, float]: ...


def clock_for(device: torch.device, on_mark: Callable[[], None] = lambda: None) -> Clock:
    """on_mark: called at each mark."""
    return CudaClock(on_mark) if device.type == "cuda" else HostClock(on_mark)


class OwnTime:
    """Seconds of a step that are a rank's own on a CPU: until it meets the others, and from then on what its main
    thread computes or waits for a core. While it waits for others it sleeps."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):  # a kernel without it: then the wait for a core does not count
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._began = self._alone = self._busy_before = 0.0

    def start(self) -> None:
        self._began = time.perf_counter()

    def meet_others(self) -> None:
        """From here on the rank may wait for others."""
        self._alone = time.perf_counter() - self._began
        self._busy_before = self._busy_seconds()

    def own_seconds(self) -> float:
        return self._alone + self._busy_seconds() - self._busy_before

    def _busy_seconds(self) -> float:
        waited = 0 if self._file is None else int(os.pread(self._file, 128, 0).split()[1])
        return time.thread_time() + waited / 1e9


class UnknownOwnTime:
    """On a GPU the host cannot distinguish them: it waits for its own device and for other ranks alike."""

    def start(self) -> None:
        """Nothing is measured."""

    def meet_others(self) -> None:
        """Nothing is measured."""

    def own_seconds(self) -> float:
        return 0.0


def own_time_for(device: torch.device) -> OwnTime | UnknownOwnTime:
    """For the thread that trains, which must create it."""
    return UnknownOwnTime() if device.type == "cuda" else OwnTime()
