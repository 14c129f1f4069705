"""Variants compute the same: same weights, same tokens, same losses."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState

from convoy.benchmark.variants.baseline import BaselineVariant, hf_model
from convoy.benchmark.variants.baseline_sharded import ShardedBaselineVariant
from convoy.benchmark.variants.convoy import ConvoyVariant
from convoy.model.hf import to_hf_tensors
from convoy.training.batches import RankData
from convoy.training.engines.convoy import build_convoy_engine
from convoy.training.process_groups import connect_ranks
from tests.training.job import GPT, LLAMA, Job, tiny


def trained(rank: int, assignments: list[Any], steps: int) -> dict[str, tuple[list[float], int]]:
    """Losses and tokens of a step of each variant, one after the other in one process group."""
    assignment = assignments[rank]
    ranks = connect_ranks(assignment)
    data = RankData(assignment.config, assignment.root, assignment.data_id, assignment.fingerprint, ranks)
    found = {}
    for variant in (
        ConvoyVariant("ours", assignment.config, ranks, data),
        BaselineVariant("baseline", assignment.config, ranks, data),
    ):
        for _ in range(steps):
            variant.step()
        variant.close()
        found[variant.name] = variant.losses, variant.tokens_per_step
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("world", [1, 2])
def test_the_baseline_learns_as_we_do(world: int, shape: dict[str, Any], tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(model=shape, optimizer={"fused": False}))
    found = job.on_gang(world, trained, 6)
    for rank in found:
        assert rank == found[0]
        assert rank["ours"][0] == pytest.approx(rank["baseline"][0], rel=2e-4)
    losses, _ = found[0]["ours"]
    assert losses[-1] < losses[0]
    assert torch.tensor(losses).isfinite().all()


def trained_sharded(rank: int, assignments: list[Any]) -> tuple[list[float], list[float], int, int, bool]:
    """Losses of ours and of the baseline that accelerate shards; its parameters, and how many this rank keeps; whether
    it left the process without a state."""
    assignment = assignments[rank]
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    ranks = connect_ranks(assignment)
    data = RankData(assignment.config, assignment.root, assignment.data_id, assignment.fingerprint, ranks)
    ours = ConvoyVariant("ours", assignment.config, ranks, data)
    sharded = ShardedBaselineVariant("baseline, sharded", assignment.config, ranks, data)
    for variant in (ours, sharded):
        for _ in range(4):
            variant.step()
        variant.close()
    kept = sum(p.to_local().numel() for p in sharded.held()["parameters"])
    return ours.losses, sharded.losses, sharded.parameters, kept, PartialState._shared_state == {}


@pytest.mark.parametrize("recomputed", ["none", "full"])
def test_the_baseline_that_accelerate_shards_learns_as_we_do_and_keeps_half(recomputed: str, tmp_path: Path) -> None:
    """In several passes a step, whose gradients are reduced after the last."""
    train = {"global_batch": 8, "micro_batch": 2, "activation_checkpointing": recomputed}
    job = Job(str(tmp_path), tiny(model=GPT, optimizer={"fused": False}, train=train))
    for ours, theirs, parameters, kept, untouched in job.on_gang(2, trained_sharded):
        assert ours == pytest.approx(theirs, rel=2e-4)
        assert 0.45 * parameters <= kept <= 0.55 * parameters
        assert untouched


@pytest.mark.parametrize(("packing", "expected"), [(True, 8 * 16), (False, 8 * 5)])
def test_padding_is_no_token(packing: bool, expected: int, tmp_path: Path) -> None:
    """Documents of five letters: five targets each, the last of which is their end."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(200):
        (texts / f"{i}.txt").write_text("abcde")
    corpus = {"kind": "files", "path": str(texts)}
    config = tiny(data={"corpus": corpus, "tokenizer": {"kind": "bytes"}, "packing": packing})
    (found,) = Job(str(tmp_path), config).on_gang(1, trained, 3)
    assert {name: tokens for name, (_, tokens) in found.items()} == {"ours": expected, "baseline": expected}


def test_the_baseline_has_the_weights_that_ours_has_on_whichever_device_they_are_drawn(tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(model=LLAMA))
    (difference,) = job.on_gang(1, _largest_difference)
    assert difference == 0


def _largest_difference(rank: int, assignments: list[Any]) -> float:
    config = assignments[rank].config
    ranks = connect_ranks(assignments[rank])
    theirs = dict(hf_model(config, ranks.device).named_parameters())
    ours = {name: p.full_tensor() for name, p in build_convoy_engine(config, ranks).module.state_dict().items()}
    return max(float((theirs[name] - tensor).abs().max()) for name, tensor in to_hf_tensors(config.model, ours))
