"""Signals that ask a process to end, taken between two of its turns."""

import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

TURN_SECONDS = 0.1
"""Between two looks of `wait`."""


class EndingSignals:
    """Use as a context, in the main thread: while it is open the signals are kept, and end nothing by themselves.

    The handler takes no lock and only appends to a list, because it may interrupt anything, itself included.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.came: list[tuple[int, float]] = []
        """Number and Unix time of each one, oldest first."""
        self._clock = clock
        self._before: dict[int, object] = {}

    def __enter__(self) -> "EndingSignals":
        for number in ENDING:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` has it
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)  # type: ignore[arg-type]

    @property
    def first(self) -> int | None:
        """Number of the first one."""
        return self.came[0][0] if self.came else None

    @property
    def count(self) -> int:
        return len(self.came)

    def wait(self, seconds: float) -> bool:
        """Whether one came within `seconds`, or before."""
        until = time.monotonic() + seconds
        while not self.came and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, TURN_SECONDS))
        return bool(self.came)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.came.append((number, self._clock()))
