"""Training on one layout continues from a checkpoint of any other."""

from pathlib import Path
from typing import Any

import pytest

from convoy.config.model import TransformerConfig
from convoy.job.events.registry import Evaluated, ModelBuilt, Restored
from convoy.model.counts import parameter_count
from convoy.training.engines.convoy import ConvoyEngine
from tests.ranks import KILLED
from tests.training.faults import die_at
from tests.training.job import GPT_OF_4, LLAMA_OF_4, PEER_LOST, STAGES, Job, cases, differing, tiny
from tests.training.plain import plain_training


def a_job(root: Path, shape: dict[str, Any]) -> Job:
    train = {"steps": 9, "global_batch": 6, "micro_batch": 2}
    return Job(str(root), tiny(model=shape, train=train, schedule={"decay_steps": 9, "warmup_steps": 2}))


Legs = list[tuple[int, dict[str, Any]]]

WALKS: dict[str, tuple[dict[str, Any], Legs]] = {
    "llama, from 3 to 2 stages that share to 2 stages": (
        STAGES,
        [(3, {}), (4, {"pipeline": 2, "tensor": 2}), (2, {"pipeline": 2})],
    ),
}
SLOW_WALKS: dict[str, tuple[dict[str, Any], Legs]] = {
    "llama, from 2 x 2 to one to 3 x 2": (LLAMA_OF_4, [(4, {"tensor": 2}), (1, {}), (6, {"tensor": 2})]),
    "llama, from 3 stages to 2 x 2 to one": (STAGES, [(3, {"pipeline": 3}), (4, {"tensor": 2}), (1, {})]),
    "gpt, from 3 to 4 that share to ddp": (GPT_OF_4, [(3, {}), (4, {"tensor": 4}), (2, {"strategy": "ddp"})]),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("shape", "legs"), cases(WALKS, SLOW_WALKS))
def test_any_layout_goes_on_from_any_other(shape: dict[str, Any], legs: Legs, tmp_path: Path) -> None:
    job = a_job(tmp_path, shape)
    expected = plain_training(job, 6)

    for steps, (world, parallel) in zip((2, 4, 6), legs, strict=True):
        whole = {"shard_size": None, "strategy": "fsdp", "tensor": 1, "pipeline": 1}
        assert job.run(world, train={"steps": steps}, parallel=whole | parallel) == [False] * world

    assert [e.step for e in job.events(Restored)] == [2, 4]
    assert job.losses() == pytest.approx([loss for loss, _ in expected], rel=1e-6)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job of two stages whose ranks share the model by twos, saved after two steps."""
    job = a_job(tmp_path_factory.mktemp("saved"), STAGES)
    job.run(4, train={"steps": 2}, parallel={"tensor": 2, "pipeline": 2})
    return job


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("world", "tensor", "pipeline"), [(2, 1, 2), (3, 1, 1), (6, 2, 3), (2, 2, 1)])
def test_what_is_restored_is_saved_again_to_the_last_bit(
    world: int, tensor: int, pipeline: int, saved: Job, tmp_path: Path
) -> None:
    job = saved.copied(tmp_path / "copied")
    parallel = {"tensor": tensor, "pipeline": pipeline}

    # A step without an update changes nothing: what is saved then is what was restored.
    assert job.run(world, without_updates, train={"steps": 3}, parallel=parallel) == [False] * world

    assert differing(job.state(), saved.state()) == []
    assert len(job.events(Restored)) == 1


BACK = pytest.param({"pipeline": 2}, {"tensor": 2}, marks=pytest.mark.slow)


@pytest.mark.parametrize(("before", "after"), [({"tensor": 2}, {"pipeline": 2}), BACK])
def test_killed_on_one_layout_it_goes_on_on_another_from_the_last_commit(
    before: dict[str, int], after: dict[str, int], tmp_path: Path
) -> None:
    job = a_job(tmp_path, STAGES)
    job = Job(job.root, job.changed(checkpoint={"every_steps": 4}))
    expected = [loss for loss, _ in plain_training(job, 9)]

    first = job.run(2, die_at(6, ranks=[1]), parallel=before, may_die=True)
    assert first == [PEER_LOST, KILLED]
    assert job.run(2, parallel=after) == [False, False]

    assert [e.step for e in job.events(Restored)] == [4]
    assert job.losses(generation=1)[:6] == pytest.approx(expected[:6], rel=1e-6)
    assert job.losses(generation=2) == pytest.approx(expected[4:], rel=1e-6)


def test_what_is_held_out_is_judged_the_same(tmp_path: Path) -> None:
    found, shape = [], TransformerConfig(**STAGES)
    ways: list[tuple[str, int, dict[str, int]]] = [
        ("one", 1, {}),
        ("two", 2, {"tensor": 2}),
        ("cut", 2, {"pipeline": 2}),
    ]
    for name, world, parallel in ways:
        job = Job(str(tmp_path), a_job(tmp_path, STAGES).config, name)
        job.run(world, train={"steps": 1, "micro_batch": 2}, parallel=parallel)
        found.append([(e.loss, e.tokens) for e in job.events(Evaluated)])
        assert [e.parameters for e in job.events(ModelBuilt)] == [parameter_count(shape)]
    assert len(found[0]) == 2
    for other in found[1:]:
        assert [loss for loss, _ in other] == pytest.approx([loss for loss, _ in found[0]], rel=1e-6)
        assert [tokens for _, tokens in other] == [tokens for _, tokens in found[0]]


@pytest.mark.slow
def test_dropout_is_the_same_each_time_in_stages_that_share(tmp_path: Path) -> None:
    losses = []
    for name in ("one", "other"):
        config = tiny(
            model=STAGES | {"dropout": 0.2}, parallel={"pipeline": 2, "tensor": 2}, train={"steps": 3, "micro_batch": 2}
        )
        job = Job(str(tmp_path), config, name)
        job.run(4)
        losses.append(job.losses())
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 3


def without_updates(rank: int) -> None:
    ConvoyEngine.update = lambda *_: None  # type: ignore[method-assign]
