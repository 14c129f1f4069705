"""A log that a thread writes: whoever appends never waits, and nothing is lost, repeated or out of order."""

import contextlib
import statistics
import threading
import time
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.storage import StoreUnavailable
from convoy.storage.log import BackgroundLog
from tests.campaign import examples

pytestmark = pytest.mark.campaign


class Hand:
    """A sink that takes lines only while it is let, and refuses where it is told to."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.refused: str | None = None
        self.fails: list[int] = []
        """Of each call to come: lines that it takes before it fails."""
        self.written: list[bytes] = []
        self.synced = 0
        self.closed = threading.Event()

    def write(self, lines: deque[bytes]) -> None:
        self.entered.set()
        assert self.open.wait(30)
        if self.refused is not None:
            raise StoreUnavailable(self.refused)
        most = self.fails.pop(0) if self.fails else None
        while lines:
            if most is not None and most == 0:
                raise StoreUnavailable("in the middle")
            self.written.append(lines.popleft())
            most = None if most is None else most - 1

    def sync(self) -> None:
        self.synced += 1

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def hand() -> Hand:
    return Hand()


def lines(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def test_appending_takes_no_time_while_the_storage_hangs_and_all_comes_in_order_when_it_goes_on(hand: Hand) -> None:
    log = BackgroundLog(hand, "log")
    hand.open.clear()
    log.append(b"0")
    assert hand.entered.wait(30)
    took = []
    for line in lines(1000)[1:]:
        began = time.perf_counter()
        log.append(line)
        took.append(time.perf_counter() - began)
    assert hand.written == []
    assert statistics.median(took) < 0.001
    assert sum(took) < 5
    hand.open.set()
    log.close()
    assert hand.written == lines(1000)


def test_a_flush_gives_up_at_its_deadline_and_keeps_the_lines(hand: Hand) -> None:
    log = BackgroundLog(hand, "the log")
    hand.open.clear()
    log.append(b"0")
    with pytest.raises(StoreUnavailable, match=r"the log: no answer in 0\.05 s; 1 lines wait"):
        log.flush(0.05)
    hand.open.set()
    log.flush()
    assert hand.written == [b"0"]
    assert hand.synced


def test_what_the_storage_refuses_is_told_by_a_flush_and_written_later_without_one(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.storage.log.RETRY_SECONDS", 0.01)
    log = BackgroundLog(hand, "log")
    hand.refused = "no space left"
    for line in lines(5):
        log.append(line)
        with pytest.raises(StoreUnavailable, match="no space left"):
            log.flush()
    hand.refused = None
    deadline = time.monotonic() + 10
    while len(hand.written) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert hand.written == lines(5)


@examples(40)
@given(fails=st.lists(st.integers(0, 4), max_size=8), flushes=st.sets(st.integers(0, 29)))
def test_errors_anywhere_lose_repeat_and_reorder_nothing(fails: list[int], flushes: set[int]) -> None:
    hand = Hand()
    hand.fails = list(fails)
    log = BackgroundLog(hand, "log")
    for i, line in enumerate(lines(30)):
        log.append(line)
        if i in flushes:
            _flush(log)
    for _ in fails:
        _flush(log)
    log.close()
    assert hand.written == lines(30)


def _flush(log: BackgroundLog) -> None:
    with contextlib.suppress(StoreUnavailable):
        log.flush()


def test_a_fault_that_nobody_foresaw_does_not_end_the_log(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    log = BackgroundLog(hand, "log")
    with monkeypatch.context() as broken:
        broken.setattr(hand, "sync", lambda: list(range(2))[2])
        with pytest.raises(IndexError):
            log.flush()
    log.append(b"0")
    log.flush()
    assert hand.written == [b"0"]


def test_too_many_lines_cost_the_oldest_that_nobody_is_writing_and_are_counted_once(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.storage.log.MAX_LINES", 10)
    log = BackgroundLog(hand, "log")
    hand.open.clear()
    log.append(b"0")
    assert hand.entered.wait(30)
    for line in lines(100)[1:]:
        log.append(line)
    assert log.take_dropped() == 0  # nobody could read it yet
    hand.open.set()
    log.flush()
    assert hand.written == [b"0", *lines(100)[90:]]
    assert (log.take_dropped(), log.take_dropped()) == (89, 0)


def test_lines_are_gathered_and_a_flush_does_not_wait_for_that(hand: Hand) -> None:
    log = BackgroundLog(hand, "log", gather_seconds=60)
    log.append(b"0")
    log.append(b"1")
    assert not hand.entered.wait(0.05)
    log.flush(30)
    assert hand.written == lines(2)


def test_a_close_that_fails_leaves_the_log_open_and_one_that_succeeds_ends_it(hand: Hand) -> None:
    log = BackgroundLog(hand, "log")
    hand.refused = "away"
    log.append(b"0")
    with pytest.raises(StoreUnavailable):
        log.close()
    log.append(b"1")
    hand.refused = None
    log.close()
    log.close()
    assert hand.closed.is_set()
    assert hand.written == lines(2)
    with pytest.raises(ValueError, match="closed"):
        log.append(b"2")
