"""The log as lines: what there is, what comes, and when it ends."""

import threading
from pathlib import Path

from convoy.job.events.log import EventWriter
from convoy.job.events.registry import FailureDetected, GenerationEnded, GenerationStarted, StepDone
from convoy.job.heartbeat import LiveMarker
from convoy.report.tail import event_lines, tail_lines
from convoy.storage import Store, open_store
from tests.report.synthetic import failed_job, finished_job, running_job, write_log


def stored(folder: Path, events: list) -> Store:  # type: ignore[type-arg]
    store = open_store(str(folder / "job"))
    write_log(store, events)
    return store


def step(number: int, skipped: bool = False) -> StepDone:
    return StepDone(step=number, loss=2.5, grad_norm=1.0, lr=0.003, tokens=1000, seconds=0.5, skipped=skipped)


def test_a_step_is_one_line_with_loss_rate_and_learning_rate() -> None:
    (line,) = event_lines([step(1200)])
    assert line.endswith("step 1,200  loss 2.50  2000 tok/s  lr 0.003")


def test_a_skipped_step_says_so() -> None:
    assert any(line.endswith("skipped: not finite") for line in event_lines([step(3, skipped=True)]))


def test_a_finished_log_is_printed_whole_and_following_it_ends(tmp_path: Path) -> None:
    store = stored(tmp_path, finished_job())
    followed = list(tail_lines(store, True))
    assert followed == list(tail_lines(store, False))
    assert sum("  step " in line for line in followed) == len([e for e in finished_job() if isinstance(e, StepDone)])
    assert "finished" in followed[-1]


def test_lines_are_in_the_order_of_time(tmp_path: Path) -> None:
    stamps = [line[:8] for line in tail_lines(stored(tmp_path, finished_job()), False)]
    assert stamps == sorted(stamps)


def test_the_log_of_a_failed_job_names_the_rank_that_ended(tmp_path: Path) -> None:
    assert any("Rank" in line and "ended" in line for line in tail_lines(stored(tmp_path, failed_job()), True))


def test_following_a_job_that_nobody_runs_any_more_ends_and_says_so(tmp_path: Path) -> None:
    followed = list(tail_lines(stored(tmp_path, running_job()), True))
    assert followed[-1] == "no run is working on this job now"


def test_following_goes_on_over_a_restart_in_place(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "job"))
    agent, again = EventWriter(store, 1, 0), EventWriter(store, 2, 0)
    agent.append(FailureDetected(cause="exited", failed_node=0, worker=0, signal="SIGKILL", action="restart"))
    agent.append(GenerationEnded(outcome="failed"))
    agent.flush()
    with LiveMarker(store, "blue", "TrainFlow/1"):
        followed = tail_lines(store, True, poll_seconds=0.01)
        assert "the gang restarts in place" in next(followed)
        assert "failed" in next(followed)
        threading.Timer(
            0.05,
            lambda: (again.append(GenerationStarted(world_size=1)), again.append(GenerationEnded(outcome="finished"))),
        ).start()
        assert len(list(followed)) == 2


def test_following_a_live_job_prints_what_comes_until_it_ends(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "job"))
    agent = EventWriter(store, 1, 0)
    agent.append(GenerationStarted(world_size=1))
    agent.flush()
    with LiveMarker(store, "blue", "TrainFlow/1"):
        followed = tail_lines(store, True, poll_seconds=0.01)
        assert "Generation 1 formed" in next(followed)
        threading.Timer(
            0.05, lambda: (agent.append(step(1)), agent.append(GenerationEnded(outcome="finished")))
        ).start()
        rest = list(followed)
    assert ["step 1" in rest[0], "finished" in rest[1], len(rest)] == [True, True, 2]
