"""What an agent orders, a signal asks for or a budget ends becomes one decision of the whole gang, at one step."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from convoy.gang.workers.board import Board, Marker, Order, OrderKind
from convoy.job.events.registry import CheckpointSaved, Evaluated, SampleText, StepDone, Stopping
from convoy.training import rank as rank_of_gang
from tests.training.faults import at_step, signalled_at
from tests.training.job import Fault, Job, differing, tiny

pytestmark = pytest.mark.slow


@pytest.fixture
def boards() -> Iterator[list[Board]]:
    """One for each of two ranks, as on two nodes."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Board.create(2))) for _ in range(2)]


def a_job(root: Path) -> Job:
    return Job(str(root), tiny(train={"steps": 8}, checkpoint={"every_steps": 4}, evaluation={"every_steps": 6}))


def ordered(at: int, orders: Sequence[tuple[Board, OrderKind]]) -> Fault:
    """Rank 0, whose vote for this step is cast already, has agents give these orders."""

    return at_step(at, [0], lambda _: [board.give_order(kind) for board, kind in orders])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("node", [0, 1])
def test_a_save_and_end_ordered_on_one_node_is_made_by_all(node: int, boards: list[Board], tmp_path: Path) -> None:
    job = a_job(tmp_path)

    stopped = job.run(2, ordered(4, [(boards[node], "save_and_end")]), boards=boards)

    assert stopped == [True] * 2
    step = job.steps_committed()[-1]
    assert step == 6 or (node, step) == (1, 5)  # another rank may have voted later than rank 0
    assert job.steps_committed() == [4, step]
    assert [(e.step, e.reason) for e in job.events(Stopping)] == [(step, "preempted")]
    assert [e.step for e in job.events(StepDone)] == list(range(1, step + 1))
    assert [e.step for e in job.events(Evaluated)] == [0]  # who saves and ends does not evaluate first


SLOW_TO_EVALUATE: dict[str, dict[str, object]] = {
    "train": {"steps": 8, "micro_batch": 1},
    "evaluation": {"every_steps": 6, "sequences": 10},
}
"""Five batches for each of two ranks."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("at", "kind", "stops", "committed", "evaluated", "batches"),
    [
        (6, "save_and_end", [7], [7], [0], 2),
        (6, "end", [7], [], [0], 2),
        (6, "save", [], [7, 8], [0, 6, 8], 5),
        (8, "save_and_end", [], [8], [0, 6, 8], 5),
        (8, "end", [], [8], [0, 6, 8], 5),
    ],
)
def test_an_order_to_end_does_not_wait_for_an_evaluation_unless_nothing_is_left_to_save(
    at: int,
    kind: OrderKind,
    stops: list[int],
    committed: list[int],
    evaluated: list[int],
    batches: int,
    boards: list[Board],
    tmp_path: Path,
) -> None:
    job = Job(str(tmp_path / "jobs"), tiny(**SLOW_TO_EVALUATE))

    stopped = job.run(2, ordered_in_evaluation(at, boards[0], kind, tmp_path), boards=boards)

    assert stopped == [bool(stops)] * 2
    assert [e.step for e in job.events(Stopping)] == stops
    assert [e.step for e in job.events(Evaluated)] == evaluated
    assert job.steps_committed() == committed
    assert [(tmp_path / f"passed-{rank}").read_text() for rank in range(2)] == ["." * batches] * 2


def ordered_in_evaluation(at: int, board: Board, kind: OrderKind, folder: Path) -> Fault:
    """Rank 0, when it has passed the first batch of the evaluation after `at` steps, has an agent give the order. Each
    rank notes the batches that it passes in it."""

    def fault(rank: int) -> None:
        evaluate = rank_of_gang.evaluate

        def evaluated(*of: Any) -> Evaluated | None:
            *inputs, step, passed, is_urgent = of

            def note() -> None:
                passed()
                if step == at:
                    with (folder / f"passed-{rank}").open("a") as notes:
                        if rank == 0 and not notes.tell():
                            board.give_order(kind)
                        notes.write(".")

            return evaluate(*inputs, step, note, is_urgent)

        rank_of_gang.evaluate = evaluated

    return fault


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kinds", [("end", "save_and_end"), ("save", "end")])
def test_of_several_orders_the_one_with_the_least_time_counts(
    kinds: tuple[OrderKind, ...], boards: list[Board], tmp_path: Path
) -> None:
    """Which of two counts, whoever gave it, is tested in test_step.py; here, that boards lead there."""
    job = a_job(tmp_path)

    job.run(2, all_at_once(boards, kinds), boards=boards)

    assert [e.reason for e in job.events(Stopping)] == ["preempted_unsaved"]
    assert job.steps_committed() == [4]


def all_at_once(boards: Sequence[Board], kinds: Sequence[OrderKind]) -> Fault:
    """Each rank is ordered something else, all before the vote for the same step."""

    def fault(rank: int) -> None:
        at_step(4, [rank], lambda _: boards[rank].give_order(kinds[rank]))(rank)

    return fault


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The job without any order."""
    job = a_job(tmp_path_factory.mktemp("undisturbed"))
    job.run(2)
    return job


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["save_and_end", "end", "a signal"])
def test_a_job_that_was_stopped_goes_on_to_the_same_bits(
    kind: Any, undisturbed: Job, boards: list[Board], tmp_path: Path
) -> None:
    stopped = a_job(tmp_path)

    stopped.run(2, signalled(2, 1) if kind == "a signal" else ordered(2, [(boards[0], kind)]), boards=boards)
    assert stopped.run(2) == [False] * 2

    assert differing(stopped.state(), undisturbed.state()) == []


def test_a_save_that_some_rank_sees_ordered_a_step_later_is_made_once(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    with closing(Board.create(2)) as board:
        job.run(2, seen_late(board, ranks=(1,)), boards=[board] * 2)

    assert [e.step for e in job.events(CheckpointSaved)] == [4, 6, 8]


def seen_late(board: Board, ranks: Sequence[int]) -> Fault:
    """These ranks do not see the order when they vote for the first time since it was given."""
    give = ordered(4, [(board, "save")])

    def fault(rank: int) -> None:
        give(rank)
        real, seen = Marker.current_order, list[Order]()

        def current_order(self: Marker) -> Order:
            found = real(self)
            if found.kind == "save" and not seen:
                seen.append(found)
                return Order("none", found.number)
            return found

        if rank in ranks:
            Marker.current_order = current_order  # type: ignore[method-assign]

    return fault


@pytest.mark.parametrize(
    ("at", "kind", "stops", "committed"),
    [
        (4, "save", [], [4, 6, 8]),
        (4, "end", [(6, "preempted_unsaved")], [4]),
        (6, "save_and_end", [], [4, 8]),  # in the last step it is no early end
        (6, "end", [(8, "preempted_unsaved")], [4]),
    ],
)
def test_an_order_is_carried_out_after_the_next_step(
    at: int, kind: OrderKind, stops: list[tuple[int, str]], committed: list[int], boards: list[Board], tmp_path: Path
) -> None:
    job = a_job(tmp_path)

    assert job.run(2, ordered(at, [(boards[0], kind)]), boards=boards) == [bool(stops)] * 2

    assert [(e.step, e.reason) for e in job.events(Stopping)] == stops
    assert [e.step for e in job.events(CheckpointSaved)] == job.steps_committed() == committed
    if stops:  # the next attempt does what was left
        assert job.run(2) == [False] * 2
        assert job.steps_committed() == [4, 8]


def test_each_order_to_save_makes_a_save(boards: list[Board], tmp_path: Path) -> None:
    job = a_job(tmp_path)

    def twice(rank: int) -> None:
        ordered(1, [(boards[0], "save")])(rank)
        ordered(4, [(boards[0], "save")])(rank)

    job.run(2, twice, boards=boards)

    assert [e.step for e in job.events(CheckpointSaved)] == [3, 4, 6, 8]


def signalled(step: int, rank: int) -> Fault:
    return signalled_at(step, [rank], signal.SIGTERM)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("at", "rank", "stops", "committed"),
    [(4, 0, [(6, "requested")], [4, 6]), (4, 2, [(6, "requested")], [4, 6]), (7, 0, [], [4, 8])],
)
def test_a_signal_to_one_rank_stops_all_at_the_same_step_unless_it_is_the_last(
    at: int, rank: int, stops: list[tuple[int, str]], committed: list[int], tmp_path: Path
) -> None:
    job = a_job(tmp_path)

    assert job.run(3, signalled(at, rank)) == [bool(stops)] * 3

    # The vote for the step under way was cast already when the signal came.
    assert [(e.step, e.reason) for e in job.events(Stopping)] == stops
    assert job.steps_committed() == committed
    assert [e.step for e in job.events(StepDone)] == list(range(1, committed[-1] + 1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("budget", "reason"), [({"max_hours": 1e-9}, "max_hours"), ({"max_cost_usd": 1e-9}, "max_cost_usd")]
)
def test_a_spent_budget_stops_after_the_step_and_saves_it(
    budget: dict[str, float], reason: str, tmp_path: Path
) -> None:
    job = a_job(tmp_path)

    assert job.run(2, budget=budget) == [True, True]

    assert [(e.step, e.reason) for e in job.events(Stopping)] == [(1, reason)]
    assert job.steps_committed() == [1]


def test_budgets_count_what_earlier_generations_took(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    job.run(2, train={"steps": 4})
    spent = job.commit().progress.seconds

    job.run(2, budget={"max_cost_usd": spent * 36 / 3600})

    assert [e.step for e in job.events(Stopping)] == [5]
    assert job.commit().progress.seconds > spent


def test_who_asked_for_the_end_waits_for_no_sample_text(tmp_path: Path) -> None:
    text = {"corpus": {"kind": "files", "path": str(tmp_path / "text")}, "tokenizer": {"kind": "bytes"}}
    (tmp_path / "text").mkdir()
    for name in "abc":
        (tmp_path / "text" / f"{name}.txt").write_text(f"{name} is a letter. " * 40)
    wanted = {"prompts": ["a is"], "sample_tokens": 4, "sequences": 3}
    job = Job(str(tmp_path / "root"), tiny(train={"steps": 5}, data=text, evaluation=wanted))

    job.run(2, signalled(1, rank=0))
    assert job.events(SampleText) == []
    job.run(2)

    assert [(e.step, e.prompt) for e in job.events(SampleText)] == [(5, "a is")]
