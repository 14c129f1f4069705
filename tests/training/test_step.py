"""One optimizer step: to which of its parts a rank's waiting belongs."""

import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import get_total_norm

from convoy.events.types import StepDone
from convoy.training import step
from tests.training.job import GPT, Job, tiny

LATE_SECONDS = 0.2


def late_at_the_norm(rank: int) -> None:
    """Rank 1 comes so late to where all ranks add up the gradient norm."""

    def late(*args: Any, **named: Any) -> torch.Tensor:
        time.sleep(LATE_SECONDS)
        return get_total_norm(*args, **named)

    if rank == 1:
        step.get_total_norm = late  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "sections",
    [{}, {"model": GPT | {"n_heads": 4}, "parallel": {"tensor": 2}}],
    ids=["sharded", "shared"],
)
def test_who_waits_for_others_at_the_gradient_norm_is_not_updating(tmp_path: Path, sections: dict[str, Any]) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 3, "log_every_steps": 1}, **sections))
    assert job.run(2, late_at_the_norm) == [False, False]
    steps = job.events(StepDone)
    assert len(steps) == 3
    assert statistics.median(e.exchange_seconds for e in steps) > 0.9 * LATE_SECONDS
    assert statistics.median(e.optimizer_seconds for e in steps) < 0.5 * LATE_SECONDS
