"""Where a rank says it is while it trains, and how a rank that hangs is told from those that wait for it."""

import ctypes
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from convoy.gang.diagnosis.hang_detector import HangDetector, find_hang, progress_key
from convoy.gang.workers.board import PHASES, Board, Mark, Marker, Phase
from convoy.job.events.registry import CheckpointSaved
from convoy.parallel.pipeline import OnOtherStage
from convoy.training.batch import Batch
from convoy.training.loop import Training
from convoy.training.step import Stepper
from tests.training.faults import at_step
from tests.training.job import LLAMA, Fault, Job, tiny

LOOK_SECONDS = 0.005


@pytest.fixture
def board() -> Iterator[Board]:
    with closing(Board.create(2)) as made:
        yield made


def noted(folder: Path) -> Fault:
    """Each rank keeps every point it passes, by `folder/<rank>`."""

    def fault(rank: int) -> None:
        folder.mkdir(exist_ok=True)
        real = Marker.mark_shared_point

        def passed(self: Marker) -> None:
            real(self)
            with open(folder / str(rank), "a") as file:
                file.write(json.dumps([PHASES[self._phase], self._step, self._count]) + "\n")

        Marker.mark_shared_point = passed  # type: ignore[method-assign]

    return fault


def points(folder: Path, rank: int) -> list[tuple[Phase, int, int]]:
    return [tuple(json.loads(line)) for line in (folder / str(rank)).read_text().splitlines()]


def stays(passed: Sequence[tuple[Phase, int, int]]) -> list[tuple[Phase, int]]:
    """Phases, and the steps done when each began; the moment in which an update may wait for a copy left out."""
    found: list[tuple[Phase, int]] = []
    for phase, step, _ in passed:
        if not found or phase != found[-1][0]:
            found.append((phase, step))
    return found


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """6 steps on two ranks, saved at 3 and 6, evaluated at 0, 4 and 6; then 2 more, from a commit."""
    root = tmp_path_factory.mktemp("job")
    config = tiny(train={"steps": 6}, checkpoint={"every_steps": 3}, evaluation={"every_steps": 4})
    made = Job(str(root), config)
    made.run(2, noted(root / "first"))
    made.run(2, noted(root / "second"), train={"steps": 8})
    return made


def test_all_ranks_pass_the_same_points_in_the_same_order_and_never_turn_back(job: Job) -> None:
    for name in ("first", "second"):
        passed = [points(Path(job.root) / name, rank) for rank in (0, 1)]
        assert passed[0] == passed[1]
        far = [progress_key(Mark(*point, at=0.0)) for point in passed[0]]
        assert far == sorted(set(far))


def test_every_phase_is_told(job: Job) -> None:
    passed = points(Path(job.root) / "first", 0)
    assert stays(passed)[:6] == [
        ("connect", 0), ("build", 0), ("first_step", 0), ("evaluate", 0), ("first_step", 0), ("step", 1),
    ]  # fmt: skip
    entered = {phase: {step for kind, step in stays(passed) if kind == phase} for phase in PHASES}
    assert entered["evaluate"] == {0, 4, 6}
    assert entered["save"] >= {3, 6}
    assert stays(passed)[-1] == ("finish", 6)


def test_who_goes_on_from_a_commit_restores_and_knows_its_step(job: Job) -> None:
    passed = points(Path(job.root) / "second", 1)
    assert stays(passed)[:5] == [("connect", 0), ("build", 0), ("restore", 0), ("first_step", 6), ("step", 7)]


def test_after_the_run_the_board_tells_how_long_things_took(board: Board, tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 6}, checkpoint={"every_steps": 3}))
    began = time.monotonic()

    job.run(2, boards=[board] * 2)

    saved = [e.committed_seconds for e in job.events(CheckpointSaved)][-1]
    for local_rank in (0, 1):
        mark = board.read(local_rank)
        assert (mark.phase, mark.step) == ("finish", 6)
        assert began < mark.at < time.monotonic()
        assert 0 < mark.own_seconds < mark.step_seconds + 0.005
        assert 0 < mark.save_seconds < time.monotonic() - began
        assert mark.beat_at > began
    assert saved - 0.05 <= board.read(0).save_seconds <= saved + 2.0


def test_a_rank_that_fails_says_that_it_leaves(board: Board, tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 6, "max_nonfinite_steps": 1}, optimizer={"lr": 1e30}))

    outcomes = job.run(2, boards=[board] * 2)

    assert all(isinstance(outcome, str) for outcome in outcomes)
    assert [board.read(local_rank).phase for local_rank in (0, 1)] == ["leave", "leave"]


def hold(pipe: int) -> None:
    """Wait for a byte without letting any other thread of Python run."""
    ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)


def wait(pipe: int) -> None:
    """Wait for a byte; other threads run."""
    os.read(pipe, 1)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("where", "hang"), [("in_forward", hold), ("in_forward", wait), ("before_step", wait), ("in_the_data", hold)]
)
def test_the_rank_that_hangs_is_named_and_not_the_one_that_waits_for_it(
    where: str, hang: Callable[[int], None], board: Board, tmp_path: Path
) -> None:
    rank, text = hung(Job(str(tmp_path), tiny(train={"steps": 40})), board, where, 30, 1, hang)
    assert rank == 1
    assert text.startswith("rank 1 has shown no progress in step 31 for ")


def test_a_stage_that_hangs_is_named_though_the_next_one_has_begun_fewer_micro_batches(
    board: Board, tmp_path: Path
) -> None:
    train = {"steps": 12, "micro_batch": 2}
    job = Job(str(tmp_path), tiny(model=LLAMA, parallel={"pipeline": 2}, train=train))
    rank, text = hung(job, board, "in_forward", 8, 0, wait)
    assert rank == 0
    assert text.startswith("rank 0 has shown no progress in step 9 for ")


def hung(job: Job, board: Board, where: str, step: int, rank: int, hang: Callable[[int], None]) -> tuple[int, str]:
    """Who hangs, as an agent finds, and what; then it is let go on, and the job comes to its end."""
    pipe, release = os.pipe()
    found: list[tuple[int, str]] = []
    watch = threading.Thread(target=_watch, args=(board, found, release), daemon=True)
    watch.start()

    assert job.run(2, _HANGS[where](step, rank, lambda: hang(pipe)), boards=[board] * 2) == [False, False]

    watch.join()
    os.close(pipe)
    (told,) = found
    return told


def _watch(board: Board, found: list[tuple[int, str]], release: int) -> None:
    """As an agent does, until something hangs or the ranks end; then what hung is let go."""
    patience, hangs = HangDetector(), None
    with os.fdopen(release, "wb") as pipe:
        while hangs is None and board.read(0).phase != "finish":
            time.sleep(LOOK_SECONDS)
            marks, now = {rank: board.read(rank) for rank in (0, 1)}, time.monotonic()
            patience.learn_from(marks, now)
            hangs = find_hang(marks, now, patience)
        found += [] if hangs is None else [hangs]
        pipe.write(b"x")


def _in_forward(at: int, rank: int, hang: Callable[[], None]) -> Fault:
    """Between two of the layers, all of which gather their weights from all ranks."""

    def act(stepper: Stepper) -> None:
        model: Any = stepper._engine.module
        block = next(block for block in model.blocks if not isinstance(block, OnOtherStage))
        handle = block.register_forward_hook(lambda *_: (handle.remove(), hang())[0])

    return at_step(at, [rank], act)


def _before_step(at: int, rank: int, hang: Callable[[], None]) -> Fault:
    return at_step(at, [rank], lambda _: hang())


def _in_the_data(at: int, rank: int, hang: Callable[[], None]) -> Fault:
    def fault(own: int) -> None:
        real = Training.__init__

        def init(self: Training, **values: Any) -> None:
            real(self, **values)
            self.batches = slow(self.batches) if own == rank else self.batches

        def slow(batches: Iterator[Sequence[Batch]]) -> Iterator[Sequence[Batch]]:
            for step, batch in enumerate(batches):
                if step == at:
                    hang()
                yield batch

        Training.__init__ = init  # type: ignore[method-assign]

    return fault


_HANGS = {"in_forward": _in_forward, "before_step": _before_step, "in_the_data": _in_the_data}
