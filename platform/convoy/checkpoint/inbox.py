"""What the trainer asked a writer process for, and has not been answered yet."""

import collections
import threading
import time
from dataclasses import dataclass

from convoy.checkpoint.messages import AfterCommit, Close, Request, SetLayout, WritePart


@dataclass(frozen=True)
class Received:
    """A request, and when it came, by the monotonic clock."""

    request: SetLayout | WritePart | Close
    at: float


class Inbox:
    """Requests in order; what is done between saves lies apart from them, and only the newest of it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: collections.deque[Received] = collections.deque()
        self._after_commit: AfterCommit | None = None
        self._writes = 0
        self._closing = False

    def put(self, request: Request) -> None:
        with self._changed:
            if isinstance(request, AfterCommit):
                self._after_commit = request
            else:
                self._writes += isinstance(request, WritePart)
                self._requests.append(Received(request, time.monotonic()))
            self._changed.notify_all()

    def next(self) -> Received:
        """The oldest request; waits for one. A write counts as under way until `written`."""
        with self._changed:
            self._changed.wait_for(lambda: self._requests)
            return self._requests.popleft()

    def written(self) -> None:
        """The write that `next` gave last has ended, one way or the other."""
        with self._changed:
            self._writes -= 1
            self._changed.notify_all()

    def wait_for_write(self, seconds: float) -> bool:
        """Whether a further write waits behind the one under way: at once, or after at most so long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._writes > 1, seconds)

    def wait_until_idle(self) -> None:
        """Return when no write is under way or waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._writes == 0)

    def next_after_commit(self) -> AfterCommit | None:
        """The newest request of its kind, when no write is under way; None: there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._writes == 0 and (self._after_commit or self._closing))
            request, self._after_commit = self._after_commit, None
            return request

    def close(self) -> None:
        """There will be no more requests."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
