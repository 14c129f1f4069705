"""The progress board: what workers mark is what the agent reads, and orders the other way."""

import contextlib
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.gang.diagnosis.stragglers import excess_wait_share
from convoy.gang.workers.board import LOOK_SECONDS, PHASES, Board, Marker, Order, OrderKind, heartbeat
from tests.campaign import examples, times
from tests.gang.tasks import wait_for
from tests.training.faults import before_step
from tests.training.job import Job, tiny

pytestmark = pytest.mark.campaign

LONGEST = 2**32 - 1
"""Steps that a board can tell."""


@pytest.fixture
def board() -> Iterator[Board]:
    with contextlib.closing(Board.create(3)) as made:
        yield made


def test_before_a_worker_says_anything_it_is_in_its_start(board: Board) -> None:
    for local_rank in range(3):
        mark = board.read(local_rank)
        assert (mark.phase, mark.step, mark.count) == ("start", 0, 0)
        assert 0 <= time.monotonic() - mark.at < 10
        assert (mark.step_seconds, mark.own_seconds, mark.save_seconds, mark.beat_at) == (0, 0, 0, 0)


def test_what_one_worker_marks_is_read_of_it_alone(board: Board) -> None:
    others = board.read(0), board.read(2)
    before = time.monotonic()
    marker = Marker(board.path, 1)
    marker.enter("step", 41)
    marker.mark_shared_point()

    mark = board.read(1)

    assert (mark.phase, mark.step, mark.count) == ("step", 41, 2)
    assert before <= mark.at <= time.monotonic()
    assert (board.read(0), board.read(2)) == others


def test_a_beat_is_no_progress(board: Board) -> None:
    marker = Marker(board.path, 0)
    marker.enter("step", 3)
    before = board.read(0)
    marker.beat(waiting=False)
    alive = board.read(0)
    marker.beat(waiting=True)
    waiting = board.read(0)

    assert {(m.phase, m.step, m.count, m.at) for m in (before, alive, waiting)} == {("step", 3, 1, before.at)}
    assert (before.beat_at, before.waiting_at) == (0, 0)
    assert alive.beat_at >= alive.at > alive.waiting_at == 0
    assert waiting.beat_at == waiting.waiting_at >= alive.beat_at
    assert [(m.looks, m.waits) for m in (before, alive, waiting, board.read(1))] == [(0, 0), (1, 0), (2, 1), (0, 0)]


def test_who_goes_on_shows_life_and_passes_no_point(board: Board) -> None:
    marker = Marker(board.path, 0)
    marker.enter("step", 3)
    before = board.read(0)
    marker.mark_own_progress()
    marker.mark_own_progress()
    mark = board.read(0)

    assert (mark.phase, mark.step, mark.count, mark.advances) == ("step", 3, before.count, 2)
    assert before.at < mark.at <= time.monotonic()
    assert board.read(1).advances == 0


def test_the_exit_code_that_a_script_has_earned_is_there_from_its_last_line_on(board: Board) -> None:
    marker = Marker(board.path, 1)
    marker.enter("script")
    before = board.read(1)
    marker.set_exit_code(0)
    assert (before.earned, board.read(1).earned, board.read(0).earned) == (None, 0, None)
    assert board.read(1).count == before.count + 1
    marker.set_exit_code(7)
    assert board.read(1).shifted(4.0).earned == 7


def test_all_workers_know_which_tiers_are_away(board: Board) -> None:
    markers = [Marker(board.path, slot) for slot in range(3)]
    assert {marker.unusable_tiers() for marker in markers} == {frozenset()}
    order = board.give_order("save")
    for tiers in ({0, 2}, {1}, set[int](), {0, 100}):
        board.set_unusable_tiers(tiers)
        assert {marker.unusable_tiers() for marker in markers} == {frozenset(tiers - {100})}
        assert {marker.current_order() for marker in markers} == {order}
    assert Marker(None, 0).unusable_tiers() == frozenset()


CALLS = st.one_of(
    st.sampled_from(PHASES).map(lambda phase: ("enter", phase)),
    st.just(("mark_shared_point",)),
    st.tuples(st.just("step_done"), st.integers(0, LONGEST), st.floats(0, 1e6), st.floats(0, 1e6)),
    st.tuples(st.just("save_done"), st.floats(0, 1e6)),
)


@given(st.lists(CALLS, min_size=1, max_size=30), st.integers(0, 2))
@examples(200)
def test_whatever_is_marked_is_what_is_read(calls: list[tuple[object, ...]], slot: int) -> None:
    with contextlib.closing(Board.create(3)) as board:
        marker = Marker(board.path, slot)
        phase, step, count, seconds, own, saved = "start", 0, 0, 0.0, 0.0, 0.0
        for name, *values in calls:
            getattr(marker, str(name))(*values)
            match name, values:
                case "enter", [str(entered)]:
                    phase, count = entered, count + 1
                case "mark_shared_point", []:
                    count += 1
                case "step_done", [int(done), float(a), float(b)]:
                    step, count, seconds, own = done, 1, a, b
                case "save_done", [float(a)]:
                    saved = a

        mark = board.read(slot)

        assert (mark.phase, mark.step, mark.count) == (phase, step, count)
        assert (mark.step_seconds, mark.own_seconds, mark.save_seconds) == (seconds, own, saved)


def test_a_count_that_is_too_long_stays_and_touches_nothing_else(board: Board) -> None:
    marker = Marker(board.path, 0)
    marker.enter("save", 5)
    marker._count = 2**24 - 2
    for _ in range(3):
        marker.mark_shared_point()

    mark = board.read(0)
    assert (mark.phase, mark.step, mark.count) == ("save", 5, 2**24 - 1)


def test_another_process_is_read_while_it_writes_and_never_half(board: Board) -> None:
    """Its phase follows from its step, and so does what the last step took."""
    writer = multiprocessing.get_context("fork").Process(target=_write, args=(board.path,))
    writer.start()
    try:
        seen, last = set[int](), board.read(2)
        while len(seen) < times(300):
            assert writer.is_alive()
            mark = board.read(2)
            if mark.step:
                assert (mark.phase, mark.count) == (PHASES[mark.step % len(PHASES)], 1)
                assert mark.step_seconds >= mark.step  # written before the point, and read after it
            assert (mark.step, mark.at) >= (last.step, last.at)
            seen.add(mark.step)
            last = mark
    finally:
        writer.kill()
        writer.join()


def _write(path: str) -> None:
    marker = Marker(path, 2)
    for step in itertools.count(1):
        marker._phase = step % len(PHASES)
        marker.step_done(step, float(step), 0.0)


def test_without_a_board_marks_go_nowhere_and_there_is_no_order() -> None:
    marker = Marker(None, 5)
    marker.enter("step", 1)
    marker.step_done(2, 0.1, 0.1)
    marker.save_done(1.0)
    marker.beat(waiting=True)

    assert marker.current_order() == Order("none", 0)


@pytest.mark.parametrize("kind", ["save_and_end", "end", "save"])
def test_an_order_reaches_every_worker_and_the_last_one_counts(board: Board, kind: OrderKind) -> None:
    markers = [Marker(board.path, local_rank) for local_rank in range(3)]
    assert {marker.current_order() for marker in markers} == {Order("none", 0)}

    board.give_order("save")
    given = board.give_order(kind)

    assert given == Order(kind, 2)
    assert {marker.current_order() for marker in markers} == {given}


def test_an_order_that_was_answered_is_not_asked_for_again_but_may_be_given_again(board: Board) -> None:
    marker, other = Marker(board.path, 0), Marker(board.path, 1)
    order = board.give_order("save")

    marker.acknowledge("save")

    assert marker.current_order() == Order("none", order.number)
    assert other.current_order() == order
    again = board.give_order("save")
    assert (marker.current_order(), other.current_order()) == (again, again)
    ending = board.give_order("save_and_end")
    marker.acknowledge("save")
    assert marker.current_order() == ending, "an order of another kind, which came meanwhile, is not answered"


@pytest.mark.parametrize("local_rank", [-1, 3])
def test_a_slot_that_there_is_not_is_refused(board: Board, local_rank: int) -> None:
    with pytest.raises(ValueError, match=f"local rank {local_rank}: the board has 3 slots"):
        Marker(board.path, local_rank)
    with pytest.raises(ValueError, match="has 3 slots"):
        board.read(local_rank)


def test_a_file_that_is_no_board_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(512))
    with pytest.raises(ValueError, match="no progress board"):
        Marker(str(tmp_path / "file"), 0)


def test_a_closed_board_is_gone_and_a_worker_that_has_it_open_goes_on() -> None:
    board = Board.create(1)
    marker = Marker(board.path, 0)
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    board.close()
    marker.mark_shared_point()

    with pytest.raises(OSError):
        Marker(board.path, 0)
    assert len(os.listdir("/proc/self/fd")) == files - 2  # noqa: PTH208


STEPS = 30
SLEEP_SECONDS = 0.1


def test_it_looks_ten_times_per_second_and_no_more_when_it_is_over(board: Board) -> None:
    marker = Marker(board.path, 0)
    began = time.monotonic()
    with heartbeat(marker):
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
    assert excess_wait_share(2, waits) > 0.2
    assert max(excess_wait_share(0, waits), excess_wait_share(1, waits)) < 0
