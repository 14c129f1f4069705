"""A worker is killed: what the run says, what its card shows, and how retry and resume go on."""

import pytest

from convoy.events.types import GenerationStarted, Restored, StepDone, WorkerExited
from convoy.job.lineage import read_history
from tests.flows.places import own_lines
from tests.flows.runs import Interrupted, Run

pytestmark = pytest.mark.slow


def test_a_failed_run_tells_the_first_cause_without_a_traceback(interrupted: Interrupted) -> None:
    done = interrupted.run.done
    assert done.returncode == 1
    assert "Convoy:" in done.stdout
    assert "rank 1 on node 1 was killed by SIGKILL" in done.stdout
    assert "rank 0" not in done.stdout, "a consequence is not a cause"
    assert "Traceback" not in done.stdout + done.stderr


def test_the_last_card_of_a_failed_run_shows_the_failure(interrupted: Interrupted) -> None:
    (card,) = [text for task, text in interrupted.run.cards("train") if "node" not in task]
    assert "Failed" in card
    assert "Rank 1 on node 1 ended" in card
    assert "SIGKILL" in card


def test_the_log_names_the_worker_that_failed_first(interrupted: Interrupted) -> None:
    exits = [e for e in interrupted.run.events() if isinstance(e, WorkerExited) and e.generation == 1]
    first = min(exits, key=lambda e: e.t)
    assert (first.worker, first.node, first.signal) == (1, 1, "SIGKILL")


def test_a_second_run_of_a_live_job_is_refused_before_it_starts(interrupted: Interrupted) -> None:
    assert interrupted.second.returncode == 2
    (line,) = own_lines(interrupted.second.stderr)
    assert line.startswith(f"convoy: job = bumpy: run {interrupted.run.pathspec} on ")
    assert line.endswith("is running it now")


def test_resuming_a_run_that_is_live_is_refused_too(interrupted: Interrupted) -> None:
    assert interrupted.resumed.returncode == 2
    assert f"run {interrupted.run.pathspec} on " in interrupted.resumed.stderr


def test_a_live_job_can_be_shown(interrupted: Interrupted) -> None:
    assert interrupted.shown.returncode == 0
    assert "Training" in interrupted.shown.stdout


def test_the_live_card_shows_progress_while_the_job_runs(interrupted: Interrupted) -> None:
    assert "120" in interrupted.live
    assert "Training" in interrupted.live


def test_resume_goes_on_with_the_failed_run_s_job(resumed: Run) -> None:
    assert resumed.done.returncode == 0, resumed.done.stdout + resumed.done.stderr
    generation = read_history(resumed.store).generations[2]
    assert generation.parent is not None
    assert (generation.parent.generation, generation.formation.split("/")[0]) == (1, resumed.id)
    data = resumed.data("job", "metrics")
    assert (data["job"], data["metrics"]["step"], data["metrics"]["outcome"]) == ("bumpy", 120, "finished")


def test_a_resumed_run_is_tagged_with_its_job(resumed: Run) -> None:
    assert "job:bumpy" in resumed.place.client(f"answer = sorted(Run({resumed.pathspec!r}).tags)")


def test_a_retry_goes_on_from_the_newest_commit(resumed: Run) -> None:
    generations = read_history(resumed.store).generations
    parent = generations[3].parent
    assert parent is not None
    assert (parent.generation, parent.step >= 40) == (2, True)
    started = [e for e in resumed.events() if isinstance(e, GenerationStarted) and e.generation == 3]
    assert {(e.attempt, e.run) for e in started} == {(1, resumed.pathspec)}


@pytest.mark.parametrize("generation", [2, 3])
def test_each_generation_begins_at_the_step_after_its_parent_s(resumed: Run, generation: int) -> None:
    events = [e for e in resumed.events() if e.generation == generation]
    (restored,) = [e for e in events if isinstance(e, Restored)]
    steps = [e.step for e in events if isinstance(e, StepDone)]
    assert steps[0] == restored.step + 1
    assert steps == list(range(steps[0], steps[-1] + 1))
