"""Training with a model that ranks share is the same computation as on one, and any other layout goes on from it."""

from pathlib import Path
from typing import Any

import pytest

from convoy.events.types import Restored, StepDone
from convoy.training.step import Stepper
from tests.training.job import GPT, LLAMA, Job, differing, tiny
from tests.training.plain import plain_training

STEPS = 10
GPT_OF_4 = GPT | {"n_heads": 4}
LLAMA_OF_4 = LLAMA | {"n_heads": 4, "n_kv_heads": 2, "d_ff": 72}
TENSOR = {"parallel": {"tensor": 2}}

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "gpt, 2 share": (2, {"model": GPT_OF_4, **TENSOR}),
    "llama, 2 share, selectively recomputed, by linear": (
        2,
        {
            "model": LLAMA_OF_4,
            "parallel": {"tensor": 2, "wrap": "linear"},
            "train": {"activation_checkpointing": "selective"},
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
}


@pytest.mark.parametrize("case", CASES)
def test_every_step_has_the_loss_and_gradient_of_a_plain_loop(case: str, tmp_path: Path) -> None:
    world, changed = CASES[case]
    job = Job(str(tmp_path), tiny(**changed | {"train": {"steps": STEPS} | changed.get("train", {})}))
    expected = plain_training(job, STEPS)

    assert job.run(world) == [False] * world

    steps = job.events(StepDone)
    assert [e.loss for e in steps] == pytest.approx([loss for loss, _ in expected], rel=1e-6)
    assert [e.grad_norm for e in steps] == pytest.approx([norm for _, norm in expected], rel=1e-5)
    assert expected[-1][0] < expected[0][0] - 0.05
    assert {e.tokens for e in steps} == {16 * job.config.train.global_batch}


def a_job(root: Path, shape: dict[str, Any]) -> Job:
    train = {"steps": 9, "global_batch": 6, "micro_batch": 1}
    return Job(str(root), tiny(model=shape, train=train, schedule={"decay_steps": 9, "warmup_steps": 2}))


def walk(job: Job, legs: list[tuple[int, dict[str, Any]]], steps: int = 3) -> None:
    """Train on one layout after the other, each from the commit of the one before."""
    for n, (world, parallel) in enumerate(legs):
        whole = {"shard_size": None, "strategy": "fsdp", "tensor": 1}
        assert job.run(world, train={"steps": steps * (n + 1)}, parallel=whole | parallel) == [False] * world
    assert [e.step for e in job.events(Restored)] == [steps * n for n in range(1, len(legs))]


WALKS: dict[str, tuple[dict[str, Any], list[tuple[int, dict[str, Any]]]]] = {
    "llama, from 2 x 2 to one to 3 x 2": (LLAMA_OF_4, [(4, {"tensor": 2}), (1, {}), (6, {"tensor": 2})]),
    "gpt, from 3 to 4 that share to ddp": (GPT_OF_4, [(3, {}), (4, {"tensor": 4}), (2, {"strategy": "ddp"})]),
}


@pytest.mark.parametrize("case", WALKS)
def test_any_layout_goes_on_from_any_other(case: str, tmp_path: Path) -> None:
    shape, legs = WALKS[case]
    job = a_job(tmp_path, shape)
    expected = plain_training(job, 9)

    walk(job, legs)

    assert job.losses() == pytest.approx([loss for loss, _ in expected], rel=1e-6)


def test_what_is_restored_is_saved_again_to_the_last_bit(tmp_path: Path) -> None:
    job = a_job(tmp_path, LLAMA_OF_4)
    job.run(4, train={"steps": 3}, parallel={"tensor": 2})
    saved = job.state()

    # A step without an update changes nothing: what is saved then is what was restored.
    for n, (world, tensor) in enumerate([(2, 2), (3, 1), (6, 2)]):
        job.run(world, without_updates, train={"steps": 4 + n}, parallel={"tensor": tensor})
        assert differing(job.state(), saved) == []
    assert len(job.events(Restored)) == 3


def without_updates(rank: int) -> None:
    Stepper._update = lambda *_: None  # type: ignore[method-assign]
