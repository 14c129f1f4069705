"""Some steps of a variant under `torch.profiler`."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from convoy.benchmark.measure.trace import BEGIN, END, MARK, START
from convoy.training.measure.clock import Clock, Phase


class MarkedClock:
    """A clock whose marks are in the trace too, while somebody profiles."""

    def __init__(self, clock: Clock) -> None:
        self.marking = False
        """Costs some microseconds a mark, so nothing is marked in steps that are timed."""
        self._clock = clock

    def start(self) -> None:
        if self.marking:
            note(START)
        self._clock.start()

    def mark(self, phase: Phase) -> None:
        self._clock.mark(phase)
        if self.marking:
            note(phase)

    def read(self) -> dict[str, float]:
        return self._clock.read()


def note(name: str) -> None:
    """A mark in the trace."""
    with record_function(MARK + name):
        pass


def profiled(step: Callable[[], None], clock: MarkedClock, steps: int, device: torch.device) -> list[dict[str, Any]]:
    """Events of the trace of so many steps, after one that the profiler needs for itself. All ranks call it alike."""
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    clock.marking = True
    try:
        with profile(activities=activities, schedule=schedule(wait=0, warmup=1, active=1)) as profiler:
            step()
            _wait_for(device)
            profiler.step()
            note(BEGIN)
            for _ in range(steps):
                step()
            _wait_for(device)
            note(END)
    finally:
        clock.marking = False
    with tempfile.TemporaryDirectory(prefix="convoy-trace-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
