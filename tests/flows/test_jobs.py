"""A job outlives its runs: `--job` and `--tag job:` continue it, and a finished one says so."""

import shutil
from pathlib import Path

import pytest

from convoy.job.events.registry import GenerationStarted, Restored, StepDone
from convoy.job.lineage import CommitRef, read_history
from tests.flows.forked import Forked
from tests.flows.places import CONVOY, FLOW, Place, flow_command, own_lines
from tests.flows.runs import CARD_AT_THE_END, NO_EXPORT, Run, job_of_20_steps


@pytest.mark.slow
def test_a_second_run_by_metaflow_s_runner_goes_on_from_the_commit(continued: Run) -> None:
    assert continued.done.stdout.split() == ["successful", continued.pathspec]
    generations = read_history(continued.store).generations
    assert generations[2].parent == CommitRef(generation=1, step=20)
    events = [e for e in continued.events() if e.generation == 2]
    assert [e.step for e in events if isinstance(e, StepDone)] == list(range(21, 31))
    (restored,) = [e for e in events if isinstance(e, Restored)]
    assert (restored.from_generation, restored.step) == (1, 20)
    started = [e for e in events if isinstance(e, GenerationStarted)]
    assert {(e.run, e.parent_step) for e in started} == {(continued.pathspec, 20)}


@pytest.mark.slow
def test_the_second_run_s_data_and_tags_are_of_the_whole_job(continued: Run) -> None:
    reading = "answer = [run.data.job, run.data.metrics['step'], run.data.checkpoint_uri, sorted(run.tags)]"
    job, step, checkpoint, tags = continued.place.client(f"run = Run({continued.pathspec!r})\n{reading}")
    assert job == continued.job != f"TrainFlow-{continued.id}"
    assert step == 30
    assert checkpoint.endswith("commits/000002-000000030.json")
    assert f"job:{job}" in tags


def test_a_finished_job_says_so_and_starts_no_run(forked: Forked, tmp_path: Path) -> None:
    place, job = job_of_20_steps(tmp_path)
    option, tag = ("--job", job), ("--tag", f"job:{job}")
    for words in (option, tag, (*option, *tag)):
        done = forked.run(place, FLOW, *flow_command("run", *words)[2:])
        assert done.returncode == 0
        told = f"job {job} is finished: 20 steps are done; set train.steps above 20 to continue"
        assert done.stdout.strip() == told
        assert own_lines(done.stderr) == []
    assert place.runs() == []


@pytest.mark.slow
def test_a_job_that_was_copied_from_a_tier_continues_with_its_configuration_or_without(
    smoke: Run, forked: Forked, tmp_path: Path
) -> None:
    """A tier of an older version has no configuration; then it is not known, and nothing is damaged."""
    place = Place(tmp_path)
    source, target = str(smoke.folder), str(place.root / smoke.job)
    place.run(CONVOY, "checkpoints", "copy", source, target).check_returncode()
    configs = place.root / smoke.job / "configs"
    assert [file.name for file in configs.iterdir()] == [file.name for file in (smoke.folder / "configs").iterdir()]
    for _ in range(2):
        done = forked.run(place, FLOW, *flow_command("run", "--job", smoke.job)[2:])
        assert (done.returncode, own_lines(done.stderr)) == (0, [])
        assert "is finished: 20 steps are done" in done.stdout
        listed = place.run(CONVOY, "list").stdout.splitlines()
        assert "damaged" not in listed[1]
        shutil.rmtree(configs, ignore_errors=True)


def test_a_job_whose_data_changed_under_the_same_configuration_is_refused_when_they_are_read(tmp_path: Path) -> None:
    place, job = job_of_20_steps(tmp_path)
    done = place.flow("run", "--job", job, overrides="train.steps=30")
    assert done.returncode == 1
    assert f"than job {job} was started with" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "train/" not in done.stdout


@pytest.mark.slow
def test_of_two_runs_of_a_job_started_at_once_one_trains_and_the_other_ends_with_the_reason(tmp_path: Path) -> None:
    place = Place(tmp_path)
    both = [
        place.start(*flow_command("run", "--job", "race", overrides=f"{CARD_AT_THE_END} {NO_EXPORT}")) for _ in "ab"
    ]
    ended = []
    for process in both:
        stdout, stderr = process.communicate(timeout=120)
        ended.append((process.returncode, stdout + stderr))
    (won,) = [output for code, output in ended if code == 0]
    (lost,) = [output for code, output in ended if code != 0]
    assert "job race: finished at step 20" in won
    # Which of the checks met the other run is a matter of milliseconds.
    assert "is running it now" in lost or "was formed by another run" in lost
    assert "Traceback" not in lost
