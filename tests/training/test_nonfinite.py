"""A loss or gradient that is not finite on one rank is skipped by all."""

from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from convoy.job.events.registry import CheckpointSaved, Evaluated, StepDone, Stopping
from convoy.training.step import Stepper
from tests.training.faults import Spoil, at_step, spoil_loss, spoil_losses
from tests.training.job import Job, differing, tiny


def nan_gradient(loss: torch.Tensor) -> torch.Tensor:
    """The loss as it is, with a gradient that is not."""
    if loss.requires_grad:
        loss.register_hook(lambda grad: grad * torch.nan)  # type: ignore[no-untyped-call]
    return loss


SPOILS: dict[str, Spoil] = {
    "loss and gradient NaN": lambda loss: loss * torch.nan,
    "loss infinite, gradient finite": lambda loss: loss + torch.inf,
    "gradient NaN, loss finite": nan_gradient,
    "gradient infinite": lambda loss: loss * 1e38 * 10,
}


def a_job(root: Path) -> Job:
    train = {"steps": 8, "max_nonfinite_steps": 3, "global_batch": 7, "micro_batch": 2}
    return Job(str(root), tiny(train=train, checkpoint={"every_steps": 1}))


def test_all_ranks_skip_the_step_which_leaves_weights_and_optimizer_as_they_were(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    spoils = dict(zip((1, 3, 5, 7), SPOILS.values(), strict=True))

    assert job.run(2, spoil_losses(spoils, rank=1)) == [False, False]

    assert [e.step for e in job.events(StepDone) if e.skipped] == [2, 4, 6, 8]
    assert job.steps_committed() == [1, 3, 5, 7, 8]
    assert (job.commit().progress.skipped, job.commit().progress.step) == (4, 8)
    assert all(torch.isfinite(x).all() for x in job.state().values() if isinstance(x, torch.Tensor))
    assert differing(job.state(job.commit_of(7)), job.state()) == []


def test_too_many_in_a_row_fail_on_all_ranks_and_commit_nothing(tmp_path: Path) -> None:
    job = a_job(tmp_path)

    outcomes = job.run(3, spoil_loss(SPOILS["gradient NaN, loss finite"], steps=range(4, 8), rank=2))

    assert len(set(outcomes)) == 1
    assert str(outcomes[0]).startswith("step 7: 3 steps in a row had a loss or gradient that is not finite")
    assert [e.step for e in job.events(CheckpointSaved)] == [1, 2, 3, 4]
    assert [(e.step, e.reason) for e in job.events(Stopping)] == [(7, "nonfinite")]


def test_fewer_in_a_row_start_the_count_again_and_a_save_that_fell_on_them_is_made_after_them(tmp_path: Path) -> None:
    job, skipped = a_job(tmp_path), [1, 3, 4, 6, 7]

    outcomes = job.run(2, spoil_loss(SPOILS["loss and gradient NaN"], skipped, rank=1), checkpoint={"every_steps": 4})

    assert outcomes == [False, False]
    assert job.commit().progress.skipped == 5
    assert job.steps_committed() == [6, 8]


def test_weights_that_are_broken_at_the_end_are_not_committed(tmp_path: Path) -> None:
    job = a_job(tmp_path)

    def break_weights(stepper: Stepper) -> None:
        weight = stepper._engine._parameters[0]
        assert isinstance(weight, DTensor)
        weight.to_local().detach().fill_(torch.nan)

    outcomes = job.run(2, at_step(7, [0], break_weights))

    assert [str(x)[:59] for x in outcomes] == ["step 8: the last step was not finite, nor is the held-out l"] * 2
    assert job.steps_committed() == [1, 2, 3, 4, 5, 6, 7]
    assert [e.step for e in job.events(Evaluated)] == [0]


def test_a_skipped_step_with_replicas_and_accumulation_leaves_no_gradient_behind(tmp_path: Path) -> None:
    config = tiny(train={"steps": 2, "micro_batch": 1})
    job, alone = Job(str(tmp_path / "four"), config), Job(str(tmp_path / "one"), config)
    spoil = SPOILS["gradient NaN, loss finite"]
    alone.run(1, spoil_loss(spoil, steps=[0], rank=0))

    job.run(4, spoil_loss(spoil, steps=[0], rank=3), parallel={"strategy": "hsdp", "shard_size": 2})

    assert [e.skipped for e in job.events(StepDone)] == [True, False]
    assert job.losses() == pytest.approx(alone.losses(), abs=1e-5)
    assert job.events(StepDone)[1].grad_norm == pytest.approx(alone.events(StepDone)[1].grad_norm, rel=1e-4)
