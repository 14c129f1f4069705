"""Ending before the last step: all ranks at the same one, with everything saved."""

import signal
from pathlib import Path

import pytest

from convoy.job.events.types import SampleText, StepDone, Stopping
from tests.training.faults import signalled_at
from tests.training.job import Fault, Job, differing, tiny


def a_job(root: Path) -> Job:
    return Job(str(root), tiny(train={"steps": 8}, checkpoint={"every_steps": 4}))


def asked_at(step: int, rank: int) -> Fault:
    return signalled_at(step, [rank], signal.SIGTERM)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_signal_to_one_rank_stops_all_at_the_same_step(rank: int, tmp_path: Path) -> None:
    job = a_job(tmp_path)

    assert job.run(3, asked_at(4, rank)) == [True] * 3

    # The vote for the step under way was cast already when the signal came.
    assert [(e.step, e.reason) for e in job.events(Stopping)] == [(6, "requested")]
    assert job.steps_committed() == [4, 6]
    assert [e.step for e in job.events(StepDone)] == [1, 2, 3, 4, 5, 6]


def test_a_stopped_job_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    stopped, undisturbed = a_job(tmp_path / "stopped"), a_job(tmp_path / "undisturbed")
    undisturbed.run(2)

    stopped.run(2, asked_at(2, rank=1))
    assert stopped.run(2) == [False, False]

    assert differing(stopped.state(), undisturbed.state()) == []


def test_a_signal_in_the_last_step_is_no_early_stop(tmp_path: Path) -> None:
    job = a_job(tmp_path)

    assert job.run(2, asked_at(7, rank=0)) == [False, False]

    assert job.events(Stopping) == []
    assert job.steps_committed() == [4, 8]


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

    job.run(2, asked_at(1, rank=0))
    assert job.events(SampleText) == []
    job.run(2)

    assert [(e.step, e.prompt) for e in job.events(SampleText)] == [(5, "a is")]
