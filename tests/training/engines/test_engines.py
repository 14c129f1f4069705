"""Engines train as a bare torch loop does, and continue each other's jobs."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from convoy.job.events.registry import StepDone
from convoy.training.engines import build
from convoy.training.step import Stepper
from tests.ranks import RankFailedError
from tests.training.faults import at_step, spoil_losses
from tests.training.job import GPT, LLAMA, Job, differing, tiny
from tests.training.plain import plain_training

Name = Literal["fsdp", "zero1", "zero2", "zero3", "accelerate"]

ENGINES: dict[Name, dict[str, Any]] = {
    "fsdp": {"name": "convoy"},
    "accelerate": {"name": "accelerate"},
    **{f"zero{n}": {"name": "deepspeed", "settings": {"zero_optimization": {"stage": n}}} for n in (1, 2, 3)},
}

STEPS = 6
QUICK = {"optimizer": {"lr": 4e-3}}

DDP = {"parallel": {"strategy": "ddp"}}

CASES: dict[str, tuple[Name, int, dict[str, Any]]] = {
    "ddp on three, accumulating, clipped": ("fsdp", 3, DDP | {"train": {"micro_batch": 2, "clip_norm": 0.3}}),
    "ddp on one, llama": ("fsdp", 1, DDP | {"model": LLAMA}),
    "zero1 on two, accumulating, clipped": (
        "zero1",
        2,
        {"train": {"micro_batch": 2, "clip_norm": 0.3}},
    ),
    "zero2 on three, batch not divisible": ("zero2", 3, {"train": {"global_batch": 7, "micro_batch": 2}}),
    "zero3 on two, llama, clipped": ("zero3", 2, {"model": LLAMA, "train": {"micro_batch": 2, "clip_norm": 0.3}}),
    "zero3 on one": ("zero3", 1, {}),
    "accelerate on two, accumulating, clipped": ("accelerate", 2, {"train": {"micro_batch": 2, "clip_norm": 0.3}}),
}


def job_of(folder: Path, sections: dict[str, Any], name: Name = "fsdp") -> Job:
    own = {"engine": ENGINES[name], **sections}
    train = {"steps": STEPS, "log_every_steps": 1} | own.pop("train", {})
    return Job(str(folder), tiny(train=train, **(QUICK | own)))


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradient_norms_are_those_of_a_bare_loop(tmp_path: Path, case: str) -> None:
    name, world, sections = CASES[case]
    job = job_of(tmp_path, sections, name)
    assert job.run(world) == [False] * world
    found = [(each.loss, each.grad_norm) for each in job.events(StepDone)]
    expected = plain_training(job, STEPS)
    assert len(found) == STEPS
    for (loss, norm), (plain_loss, plain_norm) in zip(found, expected, strict=True):
        assert loss == pytest.approx(plain_loss, rel=2e-6)
        assert norm == pytest.approx(plain_norm, rel=2e-5)


WALK: list[tuple[Name, int]] = [("fsdp", 2), ("zero3", 3), ("zero1", 2), ("accelerate", 1), ("zero2", 2), ("fsdp", 2)]


def test_a_job_walks_over_engines_and_trains_as_by_one(tmp_path: Path) -> None:
    steps = 2 * len(WALK)
    job = job_of(tmp_path / "walk", {"train": {"steps": steps, "global_batch": 6, "micro_batch": 3}})
    for leg, (name, world) in enumerate(WALK, 1):
        # Each leg ends where its steps do; the schedule is that of all of them.
        job.run(world, engine=ENGINES[name], train={"steps": 2 * leg}, schedule={"decay_steps": steps})
    other = job_of(tmp_path / "one", {"train": {"steps": steps, "global_batch": 6, "micro_batch": 3}})
    other.run(2, schedule={"decay_steps": steps})
    walked, alone = ([each.loss for each in one.events(StepDone)] for one in (job, other))
    assert walked == pytest.approx(alone, rel=2e-6)
    assert job.commit().sampler == other.commit().sampler
    found, expected = job.state(), other.state()
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        difference = (found[key] - tensor).abs()
        if "qkv.bias" in key and tensor.ndim:  # attention does not depend on the keys' bias: it follows rounding alone
            difference[GPT["d_model"] : 2 * GPT["d_model"]] = 0.0
        # Others differ by at most 8e-7 of a tensor's largest value.
        assert difference.max() <= 2e-5 * tensor.abs().max(), key


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3", "accelerate"])
def test_a_job_that_is_interrupted_continues_to_the_bit(tmp_path: Path, name: Name) -> None:
    whole, cut = job_of(tmp_path / "whole", {}, name), job_of(tmp_path / "cut", {}, name)
    whole.run(2)
    cut.run(2, train={"steps": 3}, schedule={"decay_steps": STEPS})
    cut.run(2)
    one, other = ([(e.loss, e.grad_norm) for e in job.events(StepDone)] for job in (whole, cut))
    assert len(one) == STEPS
    assert one == other
    assert differing(whole.state(), cut.state()) == []


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3", "accelerate"])
def test_a_step_that_is_not_finite_leaves_no_trace_in_weights_moments_and_gradients(tmp_path: Path, name: Name) -> None:
    spoiled = spoil_losses({1: lambda loss: loss * torch.nan}, rank=1)
    engines: tuple[Name, Name] = (name, "fsdp")
    jobs = [job_of(tmp_path / each, {"train": {"micro_batch": 2}}, each) for each in engines]
    for job in jobs:
        job.run(2, spoiled)
    found, expected = ([(e.skipped, e.loss, e.grad_norm) for e in job.events(StepDone)] for job in jobs)
    assert [skipped for skipped, *_ in found] == [False, True, False, False, False, False]
    for (_, loss, norm), (_, other, other_norm) in zip(found[2:], expected[2:], strict=True):
        assert (loss, norm) == (pytest.approx(other, rel=2e-6), pytest.approx(other_norm, rel=2e-5))


@pytest.mark.parametrize("world", [1, 2])
def test_ddp_reduces_in_bf16_on_few_ranks_too(tmp_path: Path, world: int) -> None:
    one, other = (job_of(tmp_path / each, DDP | {"train": {"reduce_dtype": each}}) for each in ("fp32", "bf16"))
    for job in (one, other):
        job.run(world)
    found, expected = ([(e.loss, e.grad_norm) for e in job.events(StepDone)] for job in (other, one))
    assert found != expected
    assert found == [(pytest.approx(loss, rel=1e-2), pytest.approx(norm, rel=1e-2)) for loss, norm in expected]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_job_by_ddp_that_is_interrupted_on_three_ranks_continues_to_the_bit(tmp_path: Path, dtype: str) -> None:
    """Where gradients are added in another order than before, the sums of three are others."""
    sections = DDP | {"train": {"param_dtype": dtype, "reduce_dtype": dtype}}
    whole, cut = job_of(tmp_path / "whole", sections), job_of(tmp_path / "cut", sections)
    whole.run(3)
    cut.run(3, train={"steps": 3}, schedule={"decay_steps": STEPS})
    cut.run(3)
    assert [e.loss for e in whole.events(StepDone)] == [e.loss for e in cut.events(StepDone)]
    assert differing(whole.state(), cut.state()) == []


OFFLOADED = {
    "zero1": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
    "zero2": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "zero3": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OFFLOADED)
def test_offloaded_state_is_trained_saved_and_restored_as_any_other(tmp_path: Path, name: Name) -> None:
    """DeepSpeed's code for it runs on a CPU too, where Convoy refuses it, as at the end."""

    def allow(_: int) -> None:
        build.check_engine_offload = lambda engine: None  # type: ignore[attr-defined]

    sections = {"train": {"micro_batch": 2, "clip_norm": 0.3}, "engine": {"name": "deepspeed"}}
    sections["engine"]["settings"] = {"zero_optimization": OFFLOADED[name]}
    whole, cut = job_of(tmp_path / "whole", sections), job_of(tmp_path / "cut", sections)
    whole.run(2, allow)
    cut.run(2, allow, train={"steps": 3}, schedule={"decay_steps": STEPS})
    cut.run(2, allow)
    one, other = ([(e.loss, e.grad_norm) for e in job.events(StepDone)] for job in (whole, cut))
    assert one == other
    assert differing(whole.state(), cut.state()) == []
    for (loss, norm), (plain_loss, plain_norm) in zip(one, plain_training(whole, STEPS), strict=True):
        assert (loss, norm) == (pytest.approx(plain_loss, rel=2e-6), pytest.approx(plain_norm, rel=2e-5))
    with pytest.raises(RankFailedError, match=r"offload_optimizer = .*: there is no GPU"):
        job_of(tmp_path / "refused", sections).run(2)


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3"])
def test_what_is_saved_is_what_deepspeed_itself_says_it_has(tmp_path: Path, name: Name) -> None:
    def compare(stepper: Stepper) -> None:
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        zero: Any = stepper._engine.zero  # type: ignore[attr-defined]
        if name != "zero3":  # it had linked them after the first group's step, when the second one's had none
            zero._hp_optimizer_states_linked = False
            zero._lazy_init_hp_params_optimizer_state()
        tensors = stepper._engine.tensors()
        for parameter_name, parameter in stepper._engine.module.named_parameters():
            state = tensors["optimizer"]["state"][parameter_name]
            moments = {key: safe_get_full_optimizer_state(parameter, key) for key in ("exp_avg", "exp_avg_sq")}
            wholes = {"weight": safe_get_full_fp32_param(parameter), **moments}
            for key, shard in {"weight": tensors["model"][parameter_name], **state}.items():
                if key == "step":
                    assert float(shard) == 5
                    continue
                stretch = wholes[key].flatten()[shard.start : shard.start + len(shard.flat)]
                assert torch.equal(stretch, shard.flat), (parameter_name, key)

    job = job_of(tmp_path, {}, name)
    assert job.run(2, at_step(5, [0, 1], compare)) == [False, False]
