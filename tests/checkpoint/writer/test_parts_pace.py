"""Threads that move bytes together keep to a rate, whatever pieces they take."""

import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.writer.parts import PACED_SECONDS, Pace, bytes_per_second


class Clock:
    """Stands still but for what is slept."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 5)), min_size=2))
def test_never_more_than_the_rate_from_any_piece_to_any_later_one(pieces: list[tuple[int, float]]) -> None:
    clock, begun = Clock(), list[tuple[float, int]]()
    pace = Pace(100.0, clock, clock.sleep)
    for count, pause in pieces:
        pace.take(count)
        begun.append((clock.now, count))
        clock.now += pause
    for first in range(len(begun)):
        for last in range(first + 1, len(begun)):
            moved = sum(count for _, count in begun[first:last])
            assert begun[last][0] - begun[first][0] >= moved / 100.0 - 1e-6


def test_the_first_piece_waits_for_nothing_and_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    pace = Pace(10.0, clock, clock.sleep)
    pace.take(10)
    assert clock.now == 0.0
    clock.now = 100.0
    pace.take(10)
    pace.take(10)
    assert clock.now == 101.0


def test_without_a_rate_nobody_waits() -> None:
    clock = Clock()
    pace = Pace(None, clock, clock.sleep)
    for _ in range(10):
        pace.take(2**40)
    assert clock.now == 0.0


def test_threads_keep_to_it_together() -> None:
    pace, began = Pace(1000.0), time.monotonic()

    def move() -> None:
        for _ in range(5):
            pace.take(10)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 0.189


def test_once_somebody_waits_there_is_no_pace_any_more() -> None:
    clock, asked = Clock(), list[float]()

    def hurried(seconds: float) -> bool:
        asked.append(seconds)
        clock.now += 0.5
        return True

    pace = Pace(10.0, clock, hurried)
    for _ in range(5):
        pace.take(10)
    assert asked == [1.0]
    assert clock.now == 0.5


@given(st.floats(1e6, 1e9), st.integers(0, 10**12))
def test_no_part_is_held_back_for_longer_than_half_a_minute(wanted: float, part_bytes: int) -> None:
    pace = bytes_per_second(wanted, part_bytes)
    assert pace is not None
    assert pace >= wanted
    assert part_bytes / pace <= PACED_SECONDS * 1.000001
    assert bytes_per_second(None, part_bytes) is None
