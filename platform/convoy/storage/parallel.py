"""The same call for many numbers on a few threads: the first error ends it."""

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

Result = TypeVar("Result")


def in_parallel(function: Callable[[int], Result], count: int, threads: int) -> list[Result]:
    """`[function(0), ..., function(count - 1)]`. What has not begun when one call raises is not begun any more; that
    call's exception is raised once those under way have ended."""
    if min(count, threads) <= 1:
        return [function(i) for i in range(count)]
    with ThreadPoolExecutor(min(count, threads), thread_name_prefix="storage") as pool:
        futures = [pool.submit(function, i) for i in range(count)]
        ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = [future for future in ended if future.exception() is not None]
        pool.shutdown(wait=True, cancel_futures=bool(failed))
        return [future.result() for future in failed or futures]
