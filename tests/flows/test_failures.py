"""A node is lost, a worker is killed: what the run says, what its card shows, and how it goes on."""

import re

import pytest

from convoy.job.events.registry import FailureDetected, GenerationStarted, Restored, StepDone
from convoy.job.lineage import read_history
from tests.flows.places import own_lines
from tests.flows.runs import RESTARTED_STEPS, Interrupted, Restarted, Run, Watched
from tests.report.trackers.test_trackers import scalars, tensorboard_losses
from tests.sinks import PASSWORD

pytestmark = pytest.mark.slow


def test_a_failed_run_tells_the_first_cause_without_a_traceback(interrupted: Interrupted) -> None:
    done = interrupted.run.done
    assert done.returncode == 1
    assert "Convoy:" in done.stdout
    assert "node 1 was lost, its agent ended without a word" in done.stdout
    assert "rank 0" not in done.stdout, "a consequence is not a cause"
    assert "Traceback" not in done.stdout + done.stderr


def test_the_last_card_of_a_failed_run_shows_the_failure(interrupted: Interrupted) -> None:
    ((_, card),) = interrupted.run.cards("train", first=True)
    assert "Failed" in card
    assert "Node 1 was lost" in card


def test_the_log_names_the_node_that_was_lost(interrupted: Interrupted) -> None:
    (failed,) = [e for e in interrupted.run.events() if isinstance(e, FailureDetected) and e.generation == 1]
    assert (failed.cause, failed.failed_node, failed.node, failed.action) == ("node_gone", 1, 0, "end")


def test_a_killed_worker_is_replaced_and_the_run_succeeds_without_a_retry(restarted: Restarted) -> None:
    run = restarted.run
    assert run.done.returncode == 0, run.done.stdout + run.done.stderr
    started = [e for e in run.events() if isinstance(e, GenerationStarted)]
    assert sorted((e.generation, e.node, e.attempt) for e in started) == [(1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0)]
    (incident,) = run.data("incidents")["incidents"]
    assert (incident["rank"], incident["kind"], incident["then"]) == (1, "exited", "restarted in place")


def test_where_node_0_is_killed_the_retry_goes_on_from_the_newest_commit(headless: Watched) -> None:
    run = headless.run
    assert run.done.returncode == 0, run.done.stdout + run.done.stderr
    started = [e for e in run.events() if isinstance(e, GenerationStarted)]
    assert sorted((e.generation, e.node, e.attempt) for e in started) == [(1, 0, 0), (1, 1, 0), (2, 0, 1), (2, 1, 1)]
    parent = read_history(run.store).generations[2].parent
    assert parent is not None
    assert parent.step >= 20
    (failed,) = [e for e in run.events() if isinstance(e, FailureDetected)]
    assert (failed.node, failed.failed_node, failed.cause, failed.action) == (1, 0, "node_gone", "end")
    (incident,) = run.data("incidents")["incidents"]
    assert (incident["node"], incident["rank"], incident["then"]) == (0, None, "next attempt")


def test_each_message_comes_once_over_a_retry_and_names_the_first_cause(headless: Watched) -> None:
    titles = [f"Convoy: headless {what}" for what in ("has started", "has resumed", "is finished")]
    assert headless.messages.titles == titles
    first, _, _, again, card = headless.messages.bodies[1].splitlines()
    assert first == "First cause: node 0 was lost, its agent ended without a word"
    assert again.startswith("Continue: python ")
    assert again.endswith(" run --job headless")
    assert card.startswith("Card: python ")


def test_the_retry_continues_the_same_tracker_runs_without_a_step_twice(
    headless: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = headless.run
    client = MlflowClient((run.place.folder / "ml").as_uri())
    experiment = client.get_experiment_by_name("convoy")
    assert experiment is not None
    (tracked,) = client.search_runs([experiment.experiment_id])
    assert (tracked.info.run_name, tracked.info.status) == ("headless", "FINISHED")
    assert tracked.data.tags["convoy.run"] == run.pathspec
    logged = {point.step: point.value for point in scalars(run.events()) if point.name == "train/loss"}
    steps = sorted(logged)
    assert steps == list(range(1, 121))
    history = client.get_metric_history(tracked.info.run_id, "train/loss")
    assert [(m.step, m.value) for m in history] == [(step, logged[step]) for step in steps]
    shown = tensorboard_losses(run.place.folder / "board" / "headless")
    assert [step for step, _ in shown] == steps
    assert [value for _, value in shown] == pytest.approx([logged[step] for step in steps], rel=1e-6)


def test_nothing_that_a_run_leaves_or_shows_holds_the_password_of_its_target(headless: Watched) -> None:
    place, secret = headless.run.place, PASSWORD.encode()
    assert headless.messages.titles
    files = [path for path in place.folder.rglob("*") if path.is_file()]
    assert len(files) > 50
    assert [path for path in files if secret in path.read_bytes()] == []
    assert PASSWORD not in headless.run.done.stdout + headless.run.done.stderr + headless.processes


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
    assert "Running · " in interrupted.shown.stdout


def test_the_live_card_shows_progress_while_the_job_runs(restarted: Restarted) -> None:
    (bar,) = re.findall(r'"progressBar"[^}]*"max": (\d+), "value": (\d+)', restarted.live)
    assert (int(bar[0]), 0 < int(bar[1]) <= RESTARTED_STEPS) == (RESTARTED_STEPS, True)


def test_resume_goes_on_with_the_failed_run_s_job(resumed: Run) -> None:
    assert resumed.done.returncode == 0, resumed.done.stdout + resumed.done.stderr
    generation = read_history(resumed.store).generations[2]
    assert generation.parent is not None
    assert (generation.parent.generation, generation.formation.split("/")[0]) == (1, resumed.id)
    data = resumed.data("job", "metrics")
    assert (data["job"], data["metrics"]["step"], data["metrics"]["outcome"]) == ("bumpy", 120, "finished")


def test_the_run_s_data_give_what_went_wrong_and_how_the_job_went_on(resumed: Run) -> None:
    killed, again = resumed.data("incidents")["incidents"]
    assert (killed["generation"], killed["node"], killed["rank"], killed["then"]) == (1, 1, None, "next run")
    assert killed["what"].startswith("node 1 was lost")
    assert killed["recovered_s"] <= killed["beyond_s"]
    assert killed["steps_recomputed"] >= 0
    assert (again["generation"], again["then"]) == (2, "next attempt")


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
