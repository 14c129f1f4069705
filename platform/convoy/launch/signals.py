"""Signals that ask a command to end, taken between two of its turns."""

import signal
import threading
from types import FrameType, TracebackType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndingSignals:
    """Use as a context, in the main thread: while it is open the signals are counted, and end nothing by themselves."""

    def __init__(self) -> None:
        self.first: int | None = None
        """Number of the first one."""
        self.count = 0
        self._came = threading.Event()
        self._before: dict[int, object] = {}

    def __enter__(self) -> "EndingSignals":
        for number in ENDING:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` has it
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> bool:
        """Whether one came within `seconds`, or before."""
        return self._came.wait(seconds)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.first = self.first or number
        self.count += 1
        self._came.set()
