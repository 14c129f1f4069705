"""A framework's training as a variant: Convoy's weights, batches, loss and schedule, and all else the framework's own.

Each turn's steps are what the framework's documentation recommends. How a step divides into parts is measured by one
further step after each block, which waits for the result of each part, and of which no time counts for the block.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch

from convoy.benchmark.variants.variant import Variant
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.model.init import initialise_weights
from convoy.model.loss import IGNORE
from convoy.model.transformer import Transformer
from convoy.training.batch import Batch
from convoy.training.data import TrainingData
from convoy.training.optimizer import learning_rate

Part = Literal["data", "forward", "backward", "sync", "optimizer"]


@dataclass(frozen=True)
class FrameworkBatch:
    """This rank's sequences of a step."""

    tokens_bs: np.ndarray
    """int32."""
    targets_bs: np.ndarray
    """int32; 0 where the target does not count."""
    counts_bs: np.ndarray
    """fp32: 1 where the target counts, else 0."""


class FrameworkTraining(Protocol):
    """A model as a framework trains it, on this rank."""

    parameters: int
    """Parameters of the whole model."""
    values: dict[str, float]
    """Further figures, by the names of `Case.values`."""

    def step(self, batch: FrameworkBatch, lr: float) -> tuple[float, int]:
        """One optimizer step; returns the mean loss over all ranks' targets, and how many these are."""

    def step_in_parts(self, batch: FrameworkBatch, lr: float, end_part: Callable[[Part], None]) -> tuple[float, int]:
        """The same, part by part. end_part: called when all that belongs to a part has been computed."""


class FrameworkVariant(Variant):
    """A training that takes turns with Convoy's."""

    def __init__(self, name: str, config: RunConfig, data: TrainingData, training: FrameworkTraining) -> None:
        super().__init__(name)
        self.parameters = training.parameters
        self.values = training.values
        self._config = config
        self._training = training
        self._batches = data.prefetch_from(0)

    def step(self) -> None:
        self._record_step(*self._training.step(self._next_batch(), self._learning_rate()))

    def parts(self) -> Mapping[str, float]:
        """Seconds of one further step by part; all ranks call it, and it trains as any other step."""
        seconds: dict[str, float] = {}
        last = time.perf_counter()

        def end_part(part: Part) -> None:
            nonlocal last
            now = time.perf_counter()
            seconds[part] = now - last
            last = now

        batch = self._next_batch()
        end_part("data")
        self._record_step(*self._training.step_in_parts(batch, self._learning_rate(), end_part))
        return seconds

    def _learning_rate(self) -> float:
        config = self._config
        return learning_rate(len(self.losses), config.train.steps, config.optimizer, config.schedule)

    def _next_batch(self) -> FrameworkBatch:
        (batch,) = next(self._batches)  # the suite makes one pass of each step
        return framework_batch(batch)

    def close(self) -> None:
        self._batches.close()


def framework_batch(batch: Batch) -> FrameworkBatch:
    tokens_bs, targets_bs = (tensor.numpy() for tensor in batch.inputs[:2])
    counts_bs = targets_bs != IGNORE
    return FrameworkBatch(
        tokens_bs=tokens_bs.astype(np.int32),
        targets_bs=np.where(counts_bs, targets_bs, 0).astype(np.int32),
        counts_bs=counts_bs.astype(np.float32),
    )


def initial_weights(config: RunConfig) -> dict[str, np.ndarray]:
    """The weights that Convoy's training begins with, by Convoy's names; tied ones are there once."""
    shape = config.model
    assert isinstance(shape, TransformerConfig)
    model = Transformer(shape)
    initialise_weights(model, config.train.seed, torch.device("cpu"))
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def find_free_address() -> str:
    """`host:port` of this rank, at which nothing listens now; the other ranks reach it as they reach the gang's first
    rank."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))  # a datagram socket: nothing is sent
        host = probe.getsockname()[0]
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        return f"{host}:{listener.getsockname()[1]}"
