"""Calls that nobody waits for longer than they may take."""

import threading

import pytest

from convoy.gang.async_call import BackgroundCall
from convoy.storage import StoreUnavailable


def test_a_call_gives_what_it_returns() -> None:
    call = BackgroundCall("the sum", lambda: 1 + 1, 20.0)
    assert call.result() == 2
    assert call.is_over


def test_a_call_raises_what_it_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        BackgroundCall("the ratio", lambda: 1 / 0, 20.0).result()


def test_a_call_that_hangs_is_an_outage_and_keeps_nobody() -> None:
    never = threading.Event()
    call = BackgroundCall("the log", never.wait, 0.05)
    assert not call.is_over
    with pytest.raises(StoreUnavailable, match=r"the log: no answer within 0\.05 s"):
        call.result()
    assert call.is_over
    never.set()
