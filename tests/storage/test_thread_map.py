"""Calls on several threads: in order, and ended by the first error."""

import subprocess
import sys
from threading import Barrier, Event, Lock, get_ident

import pytest

from convoy.storage.thread_map import in_parallel


@pytest.mark.parametrize("threads", [1, 3, 50])
def test_results_come_in_the_order_of_their_numbers(threads: int) -> None:
    assert in_parallel(lambda number: number * number, 20, threads) == [number * number for number in range(20)]


def test_as_many_calls_run_at_once_as_there_are_threads() -> None:
    together = Barrier(4)
    in_parallel(lambda _: together.wait(timeout=30), 8, 4)


def test_one_thread_is_the_callers_own() -> None:
    assert in_parallel(lambda _: get_ident(), 3, 1) == [get_ident()] * 3
    assert in_parallel(lambda _: get_ident(), 1, 4) == [get_ident()]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_error_is_raised_and_what_has_not_begun_never_is(threads: int) -> None:
    begun, lock, failed = [], Lock(), Event()

    def call(number: int) -> None:
        with lock:
            begun.append(number)
        if number == 1:
            failed.set()
            raise OSError("number 1")
        if number > 1:
            assert failed.wait(timeout=30)

    with pytest.raises(OSError, match="number 1"):
        in_parallel(call, 1000, threads)
    assert len(begun) < 1000


HANGS_BEHIND_A_DEADLINE = """
import threading
from convoy.gang.async_call import BackgroundCall
from convoy.storage import StoreUnavailable
from convoy.storage.thread_map import in_parallel

never = threading.Event()
question = BackgroundCall("the store", lambda: in_parallel(lambda _: never.wait(), 4, 4), seconds=0.2)
try:
    question.result()
except StoreUnavailable as error:
    print(error)
"""


def test_calls_that_hang_do_not_keep_the_process_from_its_end() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGS_BEHIND_A_DEADLINE], capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout == "the store: no answer within 0.2 s\n"
