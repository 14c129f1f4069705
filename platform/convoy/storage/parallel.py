"""The same call for many numbers on a few threads: the first error ends it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

Result = TypeVar("Result")


class _NotBegun(Exception):
    """Another call had failed before."""


def in_parallel(function: Callable[[int], Result], count: int, threads: int) -> list[Result]:
    """`[function(0), ..., function(count - 1)]`. What has not begun when one call raises is not begun any more; that
    call's exception is raised once those under way have ended."""
    if min(count, threads) <= 1:
        return [function(i) for i in range(count)]
    failed = Event()

    def call(number: int) -> Result:
        if failed.is_set():
            raise _NotBegun
        try:
            return function(number)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(min(count, threads), thread_name_prefix="storage") as pool:
        futures = [pool.submit(call, i) for i in range(count)]
    for future in futures if failed.is_set() else ():
        error = future.exception()
        if error is not None and not isinstance(error, _NotBegun):
            raise error
    return [future.result() for future in futures]
