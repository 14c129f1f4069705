"""Signals that ask a process to end, handled between two of its turns."""

import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

TURN_SECONDS = 0.1
"""Between two looks of `wait`."""


class EndingSignals:
    """Use as a context, in the main thread: while it is open, signals are recorded, and end nothing by themselves.

    The handler takes no lock and only appends to a list, because it may interrupt anything, itself included.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.received: list[tuple[int, float]] = []
        """Number and Unix time of each signal, oldest first."""
        self._clock = clock
        self._before: dict[int, object] = {}

    def __enter__(self) -> "EndingSignals":
        for number in ENDING:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` has it
                self._before[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)  # type: ignore[arg-type]

    @property
    def first_signal(self) -> int | None:
        """Number of the first one."""
        return self.received[0][0] if self.received else None

    @property
    def count(self) -> int:
        return len(self.received)

    def wait(self, seconds: float) -> bool:
        """Whether a signal arrived within `seconds`, or before."""
        until = time.monotonic() + seconds
        while not self.received and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, TURN_SECONDS))
        return bool(self.received)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.received.append((number, self._clock()))
