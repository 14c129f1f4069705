"""A clock of training steps whose marks a profiler records."""

from torch.profiler import record_function

from convoy.training.measure.clock import Clock, StepPhase

MARK = "convoy:"
BEGIN, END, START = "begin", "end", "start"
"""Marks of where the profiled steps begin and end, and where each step starts. A mark of another name ends the part of
the step that it names."""


class MarkedClock:
    """A clock whose marks are in the trace too, while a profiler runs."""

    def __init__(self, clock: Clock) -> None:
        self.marking = False
        """A mark costs some microseconds, so steps that are timed have none."""
        self._clock = clock

    def start(self) -> None:
        if self.marking:
            set_mark(START)
        self._clock.start()

    def mark(self, phase: StepPhase) -> None:
        self._clock.mark(phase)
        if self.marking:
            set_mark(phase)

    def read(self) -> dict[str, float]:
        return self._clock.read()


def set_mark(name: str) -> None:
    """Put a mark into the trace of the profiler that runs."""
    with record_function(MARK + name):
        pass
