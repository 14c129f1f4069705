"""Another library's step as a variant: our model, data, loss, weights and schedule; its sharding and its update.

torch's own DistributedDataParallel is here; engines of other packages have files of their own.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from convoy.benchmark.variants.variant import Variant
from convoy.config.run import RunConfig
from convoy.parallel.fsdp import DTYPES
from convoy.training.batch import Batch
from convoy.training.build import build_whole_model
from convoy.training.data import TrainingData
from convoy.training.engines.engine import Held
from convoy.training.optimizer import adamw, learning_rate, moments, set_learning_rate
from convoy.training.process_groups import Ranks
from convoy.training.step import seed_randomness


class PeerTraining(Protocol):
    """A model as a library trains it."""

    parameters: int
    """Parameters of the whole model."""

    def forward_backward(self, batch: Batch, scale: Callable[[], float], *, last: bool) -> torch.Tensor:
        """Forward and backward of one micro batch; returns its summed loss, a scalar.

        scale: called once the forward is enqueued, gives the factor of the loss before its backward; the library
        averages gradients over ranks. last: of the step's micro batches, after which gradients must be reduced.
        """

    def update(self, lr: float) -> None:
        """Clip, update at this rate, and drop the gradients."""

    def held(self) -> Held:
        """As `Variant.held`; memory that several tensors share is listed once."""


class PeerVariant(Variant):
    """A step around an engine, with nothing but what each library needs to compute the same as all others."""

    def __init__(self, name: str, config: RunConfig, ranks: Ranks, data: TrainingData, engine: PeerTraining) -> None:
        super().__init__(name)
        self.parameters = engine.parameters
        self._config = config
        self._ranks = ranks
        self._engine = engine
        self._batches = data.prefetch_from(0)
        self._data = data

    def step(self) -> None:
        config, done = self._config, len(self.losses)
        batches = next(self._batches)
        tokens = self._start_token_sum(batches)
        loss_sum = torch.zeros((), device=self._ranks.device)
        for i, batch in enumerate(batches):
            seed_randomness(config.train.seed, done, batch.index, batch.device)
            # Engines average gradients over ranks; the loss is to be the mean over the global batch's tokens.
            loss_sum += self._engine.forward_backward(
                batch, lambda: self._ranks.place.world_size / tokens(), last=i == len(batches) - 1
            )
        reduction = dist.all_reduce(loss_sum, group=self._ranks.training_group, async_op=True)
        self._engine.update(learning_rate(done, config.train.steps, config.optimizer, config.schedule))
        assert reduction is not None
        reduction.wait()
        self._record_step(float(loss_sum) / tokens(), tokens())

    def _start_token_sum(self, batches: Sequence[Batch]) -> Callable[[], int]:
        """Start to sum the tokens of all ranks; the returned function waits for the sum."""
        count = torch.tensor(sum(batch.weight for batch in batches))
        work = dist.all_reduce(count, group=self._ranks.control, async_op=True)

        def tokens() -> int:
            assert work is not None
            work.wait()
            return max(1, int(count))

        return tokens

    def example(self) -> tuple[Any, int] | None:
        return self._data.example()

    def held(self) -> Held:
        return self._engine.held()

    def close(self) -> None:
        self._batches.close()


class TorchDdp:
    """Gradients are views of the buckets in which they are reduced, which saves their copies."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        model = build_whole_model(config, ranks)
        self.parameters = sum(p.numel() for p in model.parameters())
        self._model = DistributedDataParallel(
            model,
            device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
            process_group=ranks.training_group,
            gradient_as_bucket_view=True,
        )
        self._optimizer = adamw(model, config.optimizer)
        self._clip_norm = config.train.clip_norm
        self._device = ranks.device.type
        self._dtype = DTYPES[config.train.param_dtype]

    def forward_backward(self, batch: Batch, scale: Callable[[], float], *, last: bool) -> torch.Tensor:
        with nullcontext() if last else self._model.no_sync():
            with torch.autocast(self._device, self._dtype, enabled=self._dtype != torch.float32):
                loss: torch.Tensor = self._model(*batch.inputs)
            (loss * scale()).backward()
        return loss.detach()

    def update(self, lr: float) -> None:
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm, foreach=True)
        set_learning_rate(self._optimizer, lr)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def held(self) -> Held:
        parameters = list(self._model.parameters())
        # The buckets of which gradients are views persist: as large as these.
        buckets = [p for p in parameters if p.requires_grad]
        return {"parameters": parameters, "optimizer": list(moments(self._optimizer)), "gradients": buckets}
