"""What trains a model. The loop, the saver and the sampler know only this interface."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from convoy.model.block import RowOrder
from convoy.parallel.pipeline import Pipeline
from convoy.training.batch import Batch
from convoy.training.build import own_weight_bytes
from convoy.training.optimizer import moments, without_state

Held = Mapping[str, Iterable[torch.Tensor]]
"""Tensors by purpose: `parameters`, `optimizer` and `gradients`."""


class Engine(ABC):
    """A model as it trains: distributed, with the optimizer that updates it."""

    parameters: int
    """Parameters of the whole model."""
    module: nn.Module
    """Called with the inputs of a batch, it returns their summed loss."""
    optimizer: torch.optim.Optimizer
    """Everything that a checkpoint holds changes only in its step."""
    pipeline: Pipeline | None = None
    """How batches go through stages; None: a rank runs the whole model."""

    @abstractmethod
    def forward_backward(self, batch: Batch, scale: Callable[[], float], *, last: bool) -> torch.Tensor:
        """Forward and backward of one micro batch; returns its summed loss, a scalar without gradient.

        scale: called once, after the forward is enqueued; the factor of the loss before its backward. Gradients are
        averaged over ranks. last: of the step's micro batches, after which gradients must be reduced.
        """

    @abstractmethod
    def grad_norm(self, sums: torch.Tensor, own_part_done: Callable[[], None]) -> float:
        """L2 norm of the reduced gradients over all parameters of all ranks, the same bits on every rank.

        sums: (n,) in fp64, is summed over all ranks on the way, in place. own_part_done: called before the rank waits
        for the others.
        """

    @abstractmethod
    def update(self, lr: float, norm: float, factor: float = 1.0) -> None:
        """Clip by the norm as configured, and apply one update at this learning rate.

        factor: multiplies all gradients first; it may be 0. norm: of the result, so what `grad_norm` returned, times
        `factor`.
        """

    @abstractmethod
    def drop_gradients(self) -> None:
        """Free the gradients of a step, applied or not."""

    @abstractmethod
    def saved_state(self) -> Callable[[], dict[str, Any]]:
        """A function that returns the tensors of a checkpoint each time it is called, after the first update."""

    @abstractmethod
    def tensors(self) -> dict[str, Any]:
        """The tensors of a checkpoint, to be filled from one; also before the first update."""

    @abstractmethod
    def put_tensors(self, tensors: dict[str, Any]) -> None:
        """Take over filled `tensors`."""

    @abstractmethod
    def not_updated(self) -> list[str]:
        """Names of trained parameters that the first update left out, as far as the engine knows it."""

    @abstractmethod
    def held(self) -> Held:
        """Everything of any size that this rank keeps from one step to the next; memory that several tensors share is
        listed once."""

    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of the weights that this rank keeps between two steps."""

    @abstractmethod
    def keep_gathered(self) -> None:
        """Keep weights that a forward gathers until the end of training, if they are sharded at all."""


class TorchEngine(Engine):
    """Any engine whose parameters torch itself names, whole or sharded, and whose optimizer is torch's."""

    rows: Mapping[str, RowOrder] = {}
    """Order in memory of the rows of weights that are cut by heads, by name."""

    def saved_state(self) -> Callable[[], dict[str, Any]]:
        from convoy.checkpoint.state.tensors import CachedTensors

        return CachedTensors(self.module, self.optimizer, self.rows)

    def tensors(self) -> dict[str, Any]:
        from convoy.checkpoint.state.tensors import tensors_of

        return tensors_of(self.module, self.optimizer, self.rows)

    def put_tensors(self, tensors: dict[str, Any]) -> None:
        from convoy.checkpoint.state.tensors import put_tensors

        put_tensors(self.module, self.optimizer, tensors)

    def not_updated(self) -> list[str]:
        return without_state(self.module, self.optimizer)

    def held(self) -> Held:
        return {"parameters": list(self.module.parameters()), "optimizer": list(moments(self.optimizer))}

    def weight_bytes(self) -> int:
        return own_weight_bytes(self.module)


class Fsdp2Engine(TorchEngine):
    """Any engine whose model FSDP2 shards, whoever applied it."""

    def keep_gathered(self) -> None:
        cast(FSDPModule, self.module).set_reshard_after_forward(False)


def clip_scale(norm: float, clip_norm: float | None, factor: float) -> float | None:
    """Factor for the gradients so that `factor` times them has at most this norm; None: leave them unchanged.

    norm: of the gradients times factor. As torch's clip_grads_with_norm_, to the bit of an fp32 gradient.
    """
    if clip_norm is None or norm <= clip_norm:
        return None if factor == 1.0 else factor
    return float(factor * (clip_norm / (torch.tensor(norm) + 1e-6)).clamp(max=1.0))
