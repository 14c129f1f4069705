"""Training with a model that ranks share is the same computation as on one, and any other layout goes on from it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from convoy.config.model import TransformerConfig
from convoy.job.events.registry import Evaluated, ModelBuilt, Restored, StepDone
from convoy.model.counts import parameter_count
from convoy.training.step import Stepper
from tests.ranks import KILLED
from tests.training.faults import die_at
from tests.training.job import GPT, LLAMA, PEER_LOST, Job, differing, tiny
from tests.training.plain import plain_training
from tests.training.test_parity import QUICK

STEPS = 6
GPT_OF_4 = GPT | {"n_heads": 4}
LLAMA_OF_4 = LLAMA | {"n_heads": 4, "n_kv_heads": 2, "d_ff": 72}
STAGES = LLAMA_OF_4 | {"n_layers": 3}
TENSOR = {"parallel": {"tensor": 2}}

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "gpt, 2 share": (2, {"model": GPT_OF_4, **TENSOR}),
    "llama, 2 share, recomputed, by linear": (
        2,
        {
            "model": LLAMA_OF_4,
            "parallel": {"tensor": 2, "wrap": "linear"},
            "train": {"activation_checkpointing": "full"},
        },
    ),
    "gpt, 2 x 2 share, batch not divisible, accumulating, clipped": (
        4,
        {"model": GPT_OF_4, **TENSOR, "train": {"global_batch": 7, "micro_batch": 2, "clip_norm": 0.3}},
    ),
    "llama, 4 share one sequence each, all recomputed": (
        4,
        {
            "model": LLAMA_OF_4 | {"n_kv_heads": 4},
            "parallel": {"tensor": 4},
            "train": {"micro_batch": 1, "activation_checkpointing": "full"},
        },
    ),
    "llama, two stages, clipped, recomputed": (
        2,
        {
            "model": STAGES,
            "parallel": {"pipeline": 2},
            "train": {"micro_batch": 2, "clip_norm": 0.3, "activation_checkpointing": "full"},
        },
    ),
    "llama, three stages, batch not divisible": (
        3,
        {"model": STAGES, "parallel": {"pipeline": 3}, "train": {"global_batch": 7, "micro_batch": 2}},
    ),
    "llama, two stages of two ranks that shard, by linear": (
        4,
        {"model": STAGES, "parallel": {"pipeline": 2, "wrap": "linear"}, "train": {"micro_batch": 1}},
    ),
    "llama, two stages of two ranks that share": (
        4,
        {"model": STAGES, "parallel": {"pipeline": 2, "tensor": 2}, "train": {"micro_batch": 3}},
    ),
    "llama, two stages of 2 x 2 ranks": (
        8,
        {"model": STAGES, "parallel": {"pipeline": 2, "tensor": 2}, "train": {"micro_batch": 2, "clip_norm": 0.3}},
    ),
}
SLOW = {
    "llama, 4 share one sequence each, all recomputed",
    "llama, two stages of two ranks that shard, by linear",
    "llama, two stages of 2 x 2 ranks",
    "llama, from 2 x 2 to one to 3 x 2",
    "llama, from 3 stages to 2 x 2 to one",
    "gpt, from 3 to 4 that share to ddp",
}


def marked(cases: Iterable[str]) -> list[Any]:
    return [pytest.param(case, marks=[pytest.mark.slow] if case in SLOW else []) for case in cases]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", marked(CASES))
def test_every_step_has_the_loss_and_gradient_of_a_plain_loop(case: str, tmp_path: Path) -> None:
    world, changed = CASES[case]
    job = Job(str(tmp_path), tiny(**changed | {"train": {"steps": STEPS} | changed.get("train", {})}, **QUICK))
    expected = plain_training(job, STEPS)

    assert job.run(world) == [False] * world

    steps = job.events(StepDone)
    assert [e.loss for e in steps] == pytest.approx([loss for loss, _ in expected], rel=1e-6)
    assert [e.grad_norm for e in steps] == pytest.approx([norm for _, norm in expected], rel=1e-5)
    assert expected[-1][0] < expected[0][0] - 0.05
    assert {e.tokens for e in steps} == {16 * job.config.train.global_batch}


def a_job(root: Path, shape: dict[str, Any]) -> Job:
    train = {"steps": 9, "global_batch": 6, "micro_batch": 2}
    return Job(str(root), tiny(model=shape, train=train, schedule={"decay_steps": 9, "warmup_steps": 2}))


def walk(job: Job, legs: list[tuple[int, dict[str, Any]]], steps: int = 2) -> None:
    """Train on one layout after the other, each from the commit of the one before."""
    for n, (world, parallel) in enumerate(legs):
        whole = {"shard_size": None, "strategy": "fsdp", "tensor": 1, "pipeline": 1}
        assert job.run(world, train={"steps": steps * (n + 1)}, parallel=whole | parallel) == [False] * world
    assert [e.step for e in job.events(Restored)] == [steps * n for n in range(1, len(legs))]


WALKS: dict[str, tuple[dict[str, Any], list[tuple[int, dict[str, Any]]]]] = {
    "llama, from 2 x 2 to one to 3 x 2": (LLAMA_OF_4, [(4, {"tensor": 2}), (1, {}), (6, {"tensor": 2})]),
    "llama, from 3 stages to 2 x 2 to one": (STAGES, [(3, {"pipeline": 3}), (4, {"tensor": 2}), (1, {})]),
    "llama, from 3 to 2 stages that share to 2 stages": (
        STAGES,
        [(3, {}), (4, {"pipeline": 2, "tensor": 2}), (2, {"pipeline": 2})],
    ),
    "gpt, from 3 to 4 that share to ddp": (GPT_OF_4, [(3, {}), (4, {"tensor": 4}), (2, {"strategy": "ddp"})]),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", marked(WALKS))
def test_any_layout_goes_on_from_any_other(case: str, tmp_path: Path) -> None:
    shape, legs = WALKS[case]
    job = a_job(tmp_path, shape)
    expected = plain_training(job, 6)

    walk(job, legs)

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
    Stepper._update = lambda *_: None  # type: ignore[method-assign]
