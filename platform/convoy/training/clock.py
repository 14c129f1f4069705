"""Where a step's time goes. On a GPU phases are told apart by CUDA events, since the host runs ahead of it."""

import time
from dataclasses import dataclass, field
from typing import Literal

import torch

Phase = Literal["data", "exchange", "forward", "backward", "optimizer"]


@dataclass
class HostClock:
    """Seconds of wall time per phase since the last `start`."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = 0.0

    def start(self) -> None:
        self.seconds = {}
        self._last = time.perf_counter()

    def mark(self, phase: Phase) -> None:
        """What passed since the last mark belongs to `phase`."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def read(self) -> dict[str, float]:
        return self.seconds


@dataclass
class CudaClock:
    """Seconds of the GPU's stream per phase since the last `start`; host-only phases count the stream's idle time."""

    _marks: list[tuple[Phase | None, torch.cuda.Event]] = field(default_factory=list)

    def start(self) -> None:
        self._marks = []
        self._record(None)

    def mark(self, phase: Phase) -> None:
        self._record(phase)

    def read(self) -> dict[str, float]:
        """Waits for the last mark."""
        seconds: dict[str, float] = {}
        self._marks[-1][1].synchronize()
        for (_, begin), (phase, end) in zip(self._marks, self._marks[1:], strict=False):
            assert phase is not None
            seconds[phase] = seconds.get(phase, 0.0) + begin.elapsed_time(end) / 1e3
        return seconds

    def _record(self, phase: Phase | None) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((phase, event))


Clock = HostClock | CudaClock


def clock_for(device: torch.device) -> Clock:
    return CudaClock() if device.type == "cuda" else HostClock()
