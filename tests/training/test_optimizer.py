"""The optimizer's groups and guard, and the learning rate of every step."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from convoy.config.train import OptimizerConfig, ScheduleConfig
from convoy.training.optimizer import build_optimizer, learning_rate
from tests.training.job import GPT, LLAMA, tiny
from tests.training.sharded import alone, sharded_model

PEAK = OptimizerConfig(lr=0.5)


def test_an_optimizer_built_before_sharding_is_refused() -> None:
    with pytest.raises(
        RuntimeError, match=r"built before sharding: it would train nothing \(0\.weight is not a DTensor"
    ):
        build_optimizer(nn.Sequential(nn.Linear(2, 2)), OptimizerConfig())


@alone
def test_matrices_are_decayed_and_vectors_are_not() -> None:
    model = sharded_model(tiny(model=GPT))
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.3, betas=(0.8, 0.9), eps=1e-7, lr=0.01))

    decayed, plain = optimizer.param_groups

    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in plain["params"]} == {1}
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))
    assert {(g["lr"], g["betas"], g["eps"], g["fused"]) for g in optimizer.param_groups} == {
        (0.01, (0.8, 0.9), 1e-7, True)
    }


@alone
@pytest.mark.parametrize(("shape", "embeddings"), [(GPT, 2), (LLAMA, 1)], ids=["gpt", "llama"])
def test_embeddings_may_be_left_undecayed(shape: dict[str, object], embeddings: int) -> None:
    model = sharded_model(tiny(model=shape))
    every, without = (
        len(build_optimizer(model, OptimizerConfig(decay_embeddings=yes)).param_groups[0]["params"])
        for yes in (True, False)
    )
    assert every - without == embeddings


@alone
def test_frozen_parameters_are_left_out() -> None:
    model = sharded_model(tiny(model=GPT))
    next(model.parameters()).requires_grad_(False)

    held = [p for group in build_optimizer(model, OptimizerConfig()).param_groups for p in group["params"]]

    assert len(held) == len(list(model.parameters())) - 1


schedules = st.builds(
    ScheduleConfig,
    kind=st.sampled_from(["cosine", "linear", "constant"]),
    warmup_steps=st.integers(0, 50),
    decay_steps=st.none() | st.integers(1, 300),
    final_fraction=st.floats(0, 1),
)


@given(schedules, st.integers(1, 200))
def test_the_rate_stays_between_zero_and_the_peak(schedule: ScheduleConfig, total: int) -> None:
    rates = [learning_rate(step, total, PEAK, schedule) for step in range(total)]
    assert all(0 <= rate <= 0.5 * (1 + 1e-12) for rate in rates)


@given(schedules, st.integers(1, 200))
def test_it_rises_through_the_warm_up_and_never_afterwards(schedule: ScheduleConfig, total: int) -> None:
    rates = [learning_rate(step, total, PEAK, schedule) for step in range(total)]
    warm, rest = rates[: schedule.warmup_steps], rates[schedule.warmup_steps :]
    assert warm == sorted(set(warm))
    assert rest == sorted(rest, reverse=True)
    if schedule.warmup_steps and total >= schedule.warmup_steps:
        assert warm[-1] == pytest.approx(0.5)


@given(schedules, st.integers(1, 200))
def test_the_decay_ends_exactly_at_its_share_of_the_peak(schedule: ScheduleConfig, total: int) -> None:
    end = max(schedule.decay_steps or total, schedule.warmup_steps + 1)
    final = 1.0 if schedule.kind == "constant" else schedule.final_fraction
    assert learning_rate(end, total, PEAK, schedule) == pytest.approx(0.5 * final)
    assert learning_rate(10 * end, total, PEAK, schedule) == pytest.approx(0.5 * final)


def test_known_values() -> None:
    cosine = ScheduleConfig(kind="cosine", warmup_steps=2, final_fraction=0.1)
    rates = [learning_rate(step, 6, PEAK, cosine) for step in range(6)]
    shape = [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * i / 4)) for i in range(4)]
    assert rates == pytest.approx([0.25, 0.5, *(0.5 * x for x in shape)])
    linear = ScheduleConfig(kind="linear", warmup_steps=0, decay_steps=4, final_fraction=0.5)
    assert [learning_rate(s, 6, PEAK, linear) for s in range(6)] == pytest.approx(
        [0.5, 0.4375, 0.375, 0.3125, 0.25, 0.25]
    )
