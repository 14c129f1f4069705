"""The same call for many numbers on a few threads: the first error ends it."""

from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import TypeVar

Result = TypeVar("Result")


def in_parallel(function: Callable[[int], Result], count: int, threads: int) -> list[Result]:
    """`[function(0), ..., function(count - 1)]`. What has not begun when one call raises is not begun any more; that
    call's exception is raised once those under way have ended.

    A call that hangs holds up who waits here, but not the end of the process, as a pool's would.
    """
    if min(count, threads) <= 1:
        return [function(i) for i in range(count)]
    failed, lock, numbers = Event(), Lock(), iter(range(count))
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def work() -> None:
        while not failed.is_set():
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                results[number] = function(number)
            except BaseException as error:
                errors[number] = error
                failed.set()

    workers: list[Thread] = []
    try:
        for i in range(min(count, threads)):
            worker = Thread(target=work, name=f"storage_{i}", daemon=True)
            worker.start()
            workers.append(worker)
        for worker in workers:
            worker.join()
    except BaseException:  # who waits is interrupted, or no more threads are to be had
        failed.set()
        raise
    finally:
        for worker in workers:  # what they read and write is the caller's, and is gone after this
            worker.join()
    if errors:
        raise errors[min(errors)]
    return [results[i] for i in range(count)]
