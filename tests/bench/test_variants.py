"""Variants compute the same: same weights, same tokens, same losses."""

from pathlib import Path
from typing import Any

import pytest
import torch

from convoy.bench.baseline import Baseline
from convoy.bench.ours import Ours
from convoy.training.batches import Data
from convoy.training.ranks import connect
from tests.training.job import GPT, LLAMA, Job, tiny


def losses(rank: int, assignments: list[Any], steps: int) -> dict[str, list[float]]:
    """Of each variant, one after the other in one process group."""
    assignment = assignments[rank]
    ranks = connect(assignment)
    data = Data(assignment.config, assignment.root, assignment.data_id, assignment.fingerprint, ranks)
    found = {}
    for variant in (Ours("ours", assignment.config, ranks, data), Baseline("baseline", assignment.config, ranks, data)):
        for _ in range(steps):
            variant.step()
        variant.close()
        found[variant.name] = variant.losses
    return found


@pytest.mark.parametrize("shape", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("world", [1, 2])
def test_the_baseline_learns_as_we_do(world: int, shape: dict[str, Any], tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(model=shape, optimizer={"fused": False}))
    found = job.on_gang(world, losses, 6)
    for rank in found:
        assert rank == found[0]
        assert rank["ours"] == pytest.approx(rank["baseline"], rel=2e-4)
    assert found[0]["ours"][-1] < found[0]["ours"][0]
    assert torch.tensor(found[0]["ours"]).isfinite().all()
