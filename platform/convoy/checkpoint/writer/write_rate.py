"""How fast a save beside training may go: what it takes of memory, storage and cores, the steps beside it lack."""

import threading
import time
from collections.abc import Callable

PACED_SECONDS = 30.0
"""Longer than this no part is held back: what is lost with a machine is what was not committed."""


def bytes_per_second(wanted: float | None, part_bytes: int) -> float | None:
    """The pace for a part; None: no limit."""
    return None if wanted is None else max(wanted, part_bytes / PACED_SECONDS)


class Pace:
    """Holds any number of threads together to so many bytes a second, from the first one that is taken."""

    def __init__(
        self,
        bytes_per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """bytes_per_second: None: no limit. sleep: where it returns something true, there is none any more."""
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = clock()

    def take(self, count: int) -> None:
        """Return when `count` bytes may be moved. Time that nobody used is not made up for later."""
        with self._lock:
            if self._rate is None:
                return
            now = self._clock()
            at = max(now, self._free_at)
            self._free_at = at + count / self._rate
        if at > now and self._sleep(at - now):
            self._rate = None
