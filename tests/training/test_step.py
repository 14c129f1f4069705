"""One optimizer step: to which of its parts a rank's waiting belongs."""

import statistics
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from convoy.job.events.types import StepDone
from convoy.training import step
from convoy.training.measure.clock import HostClock
from convoy.training.step import Exchange, Stepper
from tests.training.job import GPT, Job, tiny
from tests.training.sharded import alone, sharded_model

LATE_SECONDS = 0.2


def late_at_the_norm(rank: int) -> None:
    """Rank 1 comes so late to where all ranks add up the gradient norm."""

    def late(*args: Any, **named: Any) -> torch.Tensor:
        time.sleep(LATE_SECONDS)
        return get_total_norm(*args, **named)

    if rank == 1:
        step.get_total_norm = late  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "sections", [{}, {"model": GPT | {"n_heads": 4}, "parallel": {"tensor": 2}}], ids=["sharded", "shared"]
)
def test_who_waits_for_others_at_the_gradient_norm_is_not_updating(tmp_path: Path, sections: dict[str, Any]) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 3, "log_every_steps": 1}, **sections))
    assert job.run(2, late_at_the_norm) == [False, False]
    steps = job.events(StepDone)
    assert len(steps) == 3
    assert statistics.median(e.exchange_seconds for e in steps) > 0.9 * LATE_SECONDS
    assert statistics.median(e.optimizer_seconds for e in steps) < 0.5 * LATE_SECONDS


@alone
@pytest.mark.parametrize(("norm", "clip"), [(3.0, 1.0), (7e-3, 3e-4), (1.0000000001, 1.0), (0.5, 1.0), (9e9, None)])
def test_gradients_are_clipped_to_the_bits_of_torchs_own(norm: float, clip: float | None) -> None:
    model = sharded_model(tiny())
    parameters = list(model.parameters())
    tokens_bs = torch.zeros(2, 16, dtype=torch.int64)
    model(tokens_bs, tokens_bs).backward()
    gradients = [parameter.grad.to_local().clone() for parameter in parameters]  # type: ignore[union-attr,operator]
    optimizer, group = torch.optim.SGD(parameters, lr=0.0), cast(dist.ProcessGroup, dist.group.WORLD)

    stepper = Stepper(cast(FSDPModule, model), optimizer, Exchange(group), HostClock(), clip_norm=clip, seed=1)
    stepper._update(0.0, norm)

    expected = [torch.nn.Parameter(gradient) for gradient in gradients]
    for parameter, gradient in zip(expected, gradients, strict=True):
        parameter.grad = gradient
    clip_grads_with_norm_(expected, clip or torch.inf, torch.tensor(norm))
    for one, other in zip(parameters, expected, strict=True):
        assert torch.equal(one.grad.to_local(), other.grad)  # type: ignore[union-attr,operator,arg-type]
