"""What every framework's training receives."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from convoy.benchmark.variants.framework import (
    FrameworkBatch,
    FrameworkVariant,
    Part,
    framework_batch,
    initial_weights,
)
from convoy.model.transformer import Transformer
from convoy.training.batch import Batch
from tests.training.job import GPT, tiny

BATCH = Batch(0, (torch.tensor([[5, 6, 7]]), torch.tensor([[6, 7, -100]]), None), 2, torch.device("cpu"))


class Endless(Iterator[Sequence[Batch]]):
    def __next__(self) -> Sequence[Batch]:
        return (BATCH,)

    def close(self) -> None: ...


class Data:
    """As RankData."""

    def prefetch_from(self, step: int) -> Endless:
        assert step == 0
        return Endless()


class Recording:
    """A training that keeps the learning rates of its steps."""

    parameters = 7

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.rates: list[float] = []

    def step(self, batch: FrameworkBatch, lr: float) -> tuple[float, int]:
        self.rates.append(lr)
        return 8.0 - len(self.rates), int(batch.counts_bs.sum())

    def step_in_parts(self, batch: FrameworkBatch, lr: float, end_part: Callable[[Part], None]) -> tuple[float, int]:
        end_part("forward")
        end_part("sync")
        return self.step(batch, lr)


def test_targets_without_a_loss_count_for_nothing() -> None:
    batch = framework_batch(BATCH)
    assert batch.tokens_bs.tolist() == [[5, 6, 7]]
    assert batch.targets_bs.tolist() == [[6, 7, 0]]
    assert batch.counts_bs.tolist() == [[1, 1, 0]]
    assert {batch.tokens_bs.dtype, batch.targets_bs.dtype} == {np.dtype("int32")}


def test_the_step_that_is_measured_in_parts_trains_as_any_other() -> None:
    config = tiny(model=GPT)
    training = Recording()
    variant = FrameworkVariant("JAX", config, Data(), training)  # type: ignore[arg-type]
    variant.step()
    parts = variant.parts()
    variant.step()
    assert list(parts) == ["data", "forward", "sync"]
    assert all(seconds >= 0 for seconds in parts.values())
    assert variant.losses == [7.0, 6.0, 5.0]
    assert variant.tokens_per_step == 2
    warm_up = config.schedule.warmup_steps
    assert training.rates == [config.optimizer.lr * (step + 1) / warm_up for step in range(3)]


def test_weights_are_those_that_our_training_begins_with_and_tied_ones_are_there_once() -> None:
    config = tiny(model=GPT)
    weights = initial_weights(config)
    again = initial_weights(config)
    with torch.device("meta"):
        names = {name for name, _ in Transformer(config.model).named_parameters()}  # type: ignore[arg-type]
    assert set(weights) == names
    assert "head.weight" not in weights
    for name, values in weights.items():
        np.testing.assert_array_equal(values, again[name])
    assert weights["embed.token.weight"].std() > 0.05
