"""Training on several ranks is the same computation as on one, to rounding."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from convoy.job.events.registry import StepDone
from tests.training.job import GPT, GPT_OF_4, LLAMA, LLAMA_OF_4, STAGES, Job, cases, tiny
from tests.training.plain import plain_training

STEPS = 8
QUICK = {"optimizer": {"lr": 4e-3}}
"""Learns in so few steps."""

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "gpt on one rank": (1, {}),
    "gpt on two": (2, {}),
    "gpt on three, batch not divisible, accumulating": (3, {"train": {"global_batch": 7, "micro_batch": 2}}),
    "llama on four, kept for backward": (4, {"model": LLAMA, "parallel": {"reshard_after_forward": False}}),
    "llama on three, clipped": (3, {"model": LLAMA, "train": {"clip_norm": 0.3}}),
    "gpt on 2 x 2, accumulating": (
        4,
        {"parallel": {"strategy": "hsdp", "shard_size": 2}, "train": {"global_batch": 10, "micro_batch": 1}},
    ),
    "llama on 2 x 2": (4, {"model": LLAMA, "parallel": {"strategy": "hsdp", "shard_size": 2}}),
    "gpt on three as replicas only": (3, {"parallel": {"strategy": "hsdp", "shard_size": 1}}),
    "gpt on one, whole": (1, {"parallel": {"strategy": "ddp"}}),
    "gpt on two, whole": (2, {"parallel": {"strategy": "ddp"}}),
    "llama on three, whole, accumulating, clipped": (
        3,
        {
            "model": LLAMA,
            "parallel": {"strategy": "ddp", "wrap": "linear"},
            "train": {"global_batch": 7, "micro_batch": 1, "clip_norm": 0.3, "activation_checkpointing": "full"},
        },
    ),
    "gpt by linear, all recomputed": (
        2,
        {"parallel": {"wrap": "linear"}, "train": {"activation_checkpointing": "full", "micro_batch": 2}},
    ),
    "llama by linear on three, accumulating, reduced once": (
        3,
        {
            "model": LLAMA,
            "parallel": {"wrap": "linear", "reduce_every_pass": False},
            "train": {"global_batch": 7, "micro_batch": 1, "prefetch_steps": 0},
        },
    ),
    "gpt on 2 x 2, accumulating, reduced once, plain attention": (
        4,
        {
            "parallel": {"strategy": "hsdp", "shard_size": 2, "reduce_every_pass": False},
            "train": {"global_batch": 10, "micro_batch": 1, "attention": "plain"},
        },
    ),
    "llama by block, selectively recomputed": (
        2,
        {"model": LLAMA, "train": {"activation_checkpointing": "selective", "clip_norm": None}},
    ),
    "gpt, 2 share": (2, {"model": GPT_OF_4, "parallel": {"tensor": 2}}),
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
        {
            "model": GPT_OF_4,
            "parallel": {"tensor": 2},
            "train": {"global_batch": 7, "micro_batch": 2, "clip_norm": 0.3},
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
    "llama, two stages of two ranks that share": (
        4,
        {"model": STAGES, "parallel": {"pipeline": 2, "tensor": 2}, "train": {"micro_batch": 3}},
    ),
}
SLOW_CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "llama, 4 share one sequence each, all recomputed": (
        4,
        {
            "model": LLAMA_OF_4 | {"n_kv_heads": 4},
            "parallel": {"tensor": 4},
            "train": {"micro_batch": 1, "activation_checkpointing": "full"},
        },
    ),
    "llama, two stages of two ranks that shard, by linear": (
        4,
        {"model": STAGES, "parallel": {"pipeline": 2, "wrap": "linear"}, "train": {"micro_batch": 1}},
    ),
    "llama, two stages of 2 x 2 ranks": (
        8,
        {"model": STAGES, "parallel": {"pipeline": 2, "tensor": 2}, "train": {"micro_batch": 2, "clip_norm": 0.3}},
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("world", "changed"), cases(CASES, SLOW_CASES))
def test_every_step_has_the_loss_and_gradient_of_a_plain_loop(
    world: int, changed: dict[str, Any], tmp_path: Path
) -> None:
    job = Job(str(tmp_path), tiny(**changed | {"train": {"steps": STEPS} | changed.get("train", {})}, **QUICK))
    expected = plain_training(job, STEPS)

    assert job.run(world) == [False] * world

    steps = job.events(StepDone)
    assert [e.step for e in steps] == list(range(1, STEPS + 1))
    assert [e.loss for e in steps] == pytest.approx([loss for loss, _ in expected], rel=1e-6)
    assert [e.grad_norm for e in steps] == pytest.approx([norm for _, norm in expected], rel=1e-5)
    assert {e.tokens for e in steps} == {16 * job.config.train.global_batch}
    assert expected[-1][0] < expected[0][0] - 0.05  # it learned: equal losses of a loop that does nothing prove nothing


@pytest.fixture(scope="module")
def compiler() -> None:
    """Imported, and what it must know of the machine found out, before ranks are forked: each would do so by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # more would be processes and threads, lost to forks
        codecache, cpu_vec_isa, _ = (
            importlib.import_module(f"torch._inductor.{name}") for name in ("codecache", "cpu_vec_isa", "compile_fx")
        )
    codecache.torch_key()
    cpu_vec_isa.pick_vec_isa()


@pytest.mark.usefixtures("compiler")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_compiled_blocks_train_as_others_do(strategy: str, tmp_path: Path) -> None:
    train = {"steps": 3, "compile": True}
    job = Job(str(tmp_path), tiny(model=GPT | {"n_layers": 1}, train=train, parallel={"strategy": strategy}))

    job.run(2)

    assert job.losses() == pytest.approx([loss for loss, _ in plain_training(job, 3)], abs=1e-5)


def test_bf16_stays_close_to_fp32(tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": STEPS, "param_dtype": "bf16", "reduce_dtype": "bf16"}, **QUICK))
    expected = [loss for loss, _ in plain_training(job, STEPS)]

    job.run(2)

    assert job.losses() == pytest.approx(expected, rel=5e-3)
    assert job.losses() != pytest.approx(expected, abs=1e-7)
