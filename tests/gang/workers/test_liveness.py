"""What the thread that looks at the one that trains sees of it."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from convoy.gang.diagnosis.stragglers import waited_for
from convoy.gang.workers.board import Board, Marker
from convoy.gang.workers.liveness import LOOK_SECONDS, beating
from tests.gang.tasks import wait_for
from tests.training.faults import before_step
from tests.training.job import Job, tiny

STEPS = 30
SLEEP_SECONDS = 0.1


@pytest.fixture
def board() -> Iterator[Board]:
    with contextlib.closing(Board.create(3)) as made:
        yield made


def test_it_looks_ten_times_per_second_and_no_more_when_it_is_over(board: Board) -> None:
    marker = Marker(board.path, 0)
    began = time.monotonic()
    with beating(marker):
        wait_for("looks", lambda: board.read(0).looks >= 5)
        assert board.read(0).looks <= 2 + (time.monotonic() - began) / LOOK_SECONDS
    wait_for("its end", lambda: all(thread.name != "beat" for thread in threading.enumerate()))
    mark = board.read(0)
    assert mark.waits == 0
    assert mark.beat_at > began
    time.sleep(3 * LOOK_SECONDS)
    assert board.read(0) == mark


def test_a_rank_that_takes_longer_is_seen_to_wait_less_than_the_others(board: Board, tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": STEPS}))

    def slow(rank: int) -> None:
        before_step(lambda *_: time.sleep(SLEEP_SECONDS if rank == 2 else 0.0))

    assert job.run(3, slow, boards=[board] * 3) == [False] * 3

    marks = [board.read(slot) for slot in range(3)]
    waits = {rank: mark.waits / mark.looks for rank, mark in enumerate(marks)}
    print(f"seen to wait: {waits}")
    assert min(mark.looks for mark in marks) >= STEPS * SLEEP_SECONDS / LOOK_SECONDS / 2
    assert waited_for(2, waits) > 0.2
    assert max(waited_for(0, waits), waited_for(1, waits)) < 0
