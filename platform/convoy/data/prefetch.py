"""Builds the next steps' batches while the current one trains."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """What `build(step)` gives for each step in turn, made by one thread at most `depth` steps ahead; of depth 0, by
    whoever asks for it.

    Iterate over it; used as a context manager, it has no thread left afterwards. An exception of `build` is raised
    where its result would have come.
    """

    def __init__(self, build: Callable[[int], T], first_step: int, end_step: int, depth: int = 2) -> None:
        self._build = build
        self._steps = range(first_step, end_step)
        self._depth = depth
        self._ready: deque[T] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._done = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._build_steps, name="prefetch", daemon=True)
        self._unbuilt = iter(self._steps)
        if depth:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if not self._depth:
            return self._build(self._next_unbuilt_step())
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._done or self._closed)
            if self._ready and not self._closed:
                self._changed.notify_all()
                return self._ready.popleft()
            if self._error is not None:
                raise self._error
            raise StopIteration

    def close(self) -> None:
        """Stop after the step being built, and wait for that. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._depth:
            self._thread.join()

    def _next_unbuilt_step(self) -> int:
        if self._closed:
            raise StopIteration
        return next(self._unbuilt)

    def _build_steps(self) -> None:
        try:
            for step in self._steps:
                if not self._enqueue(self._build(step)):
                    break
        except BaseException as error:  # handed to the consumer, whatever it is
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _enqueue(self, result: T) -> bool:
        """False if nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < self._depth or self._closed)
            self._ready.append(result)
            self._changed.notify_all()
            return not self._closed
