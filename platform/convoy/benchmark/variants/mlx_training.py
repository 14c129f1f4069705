"""MLX: the decoder of `mlx.nn`, its AdamW, and gradients averaged by the ring backend of `mx.distributed`.

MLX computes lazily: an array is computed when it is evaluated. Evaluating the loss, then the gradients, then their sum
and then the weights makes the same computation part by part.
"""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import torch.distributed as dist
from mlx.utils import tree_flatten, tree_map

from convoy.benchmark.variants.framework import FrameworkBatch, Part, find_free_address, initial_weights
from convoy.benchmark.variants.mlx_decoder import Decoder
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.training.process_groups import Ranks


def connect_processes(ranks: Ranks) -> mx.distributed.Group:
    """The ring of all ranks of the gang, which gives MLX what its launcher would: ranks and addresses. All ranks call
    it alike; the first call makes the ring, the others return it."""
    addresses: list[str] = [""] * ranks.place.world_size
    dist.all_gather_object(addresses, find_free_address(), group=ranks.control)
    with tempfile.TemporaryDirectory(prefix="convoy-mlx-") as folder:
        hosts = Path(folder) / "hosts.json"
        hosts.write_text(json.dumps([[address] for address in addresses]))
        os.environ.update(MLX_RANK=str(ranks.place.rank), MLX_HOSTFILE=str(hosts))
        return mx.distributed.init(strict=True, backend="ring")


class MlxTraining:
    """Weights and moments are on every rank, as in MLX's examples of data parallelism."""

    def __init__(self, ring: mx.distributed.Group, config: RunConfig, ranks: Ranks) -> None:
        """ranks: those that train together: all of the ring, or this one alone, which then communicates with none."""
        shape = config.model
        assert isinstance(shape, TransformerConfig)
        self._model = Decoder(shape)
        self._model.load_weights([(name, mx.array(value)) for name, value in initial_weights(config).items()])
        weights = tree_flatten(self._model.trainable_parameters())
        self.parameters = sum(value.size for _, value in weights)
        self.values: dict[str, float] = {}
        self._ring, self._ranks = ring, ranks.place.world_size
        self._clip_norm = config.train.clip_norm
        self._optimizers = [_adamw(config, decay=config.optimizer.weight_decay), _adamw(config, decay=0.0)]
        embeddings = config.optimizer.decay_embeddings

        def is_decayed(name: str, value: mx.array) -> bool:
            return value.ndim >= 2 and (embeddings or not name.startswith("embed."))

        self._optimizer = optim.MultiOptimizer(self._optimizers, [is_decayed])
        self._loss_and_grads = nn.value_and_grad(self._model, self._loss_sum)

    def _loss_sum(self, tokens_bs: mx.array, targets_bs: mx.array, counts_bs: mx.array) -> mx.array:
        losses_bs = nn.losses.cross_entropy(self._model(tokens_bs), targets_bs)
        return (losses_bs * counts_bs).sum()

    def step(self, batch: FrameworkBatch, lr: float) -> tuple[float, int]:
        arrays = _arrays(batch)
        loss, grads = self._loss_and_grads(*arrays)
        sums, grads = self._sum_over_ranks(mx.stack([loss, arrays[2].sum()]), grads)
        self._update(sums, grads, lr)
        mx.eval(self._model.parameters(), self._optimizer.state, sums)
        return _loss_and_count(sums)

    def step_in_parts(self, batch: FrameworkBatch, lr: float, end_part: Callable[[Part], None]) -> tuple[float, int]:
        arrays = _arrays(batch)
        mx.eval(arrays)
        end_part("data")
        loss, grads = self._loss_and_grads(*arrays)
        mx.eval(loss)
        end_part("forward")
        mx.eval(grads)
        end_part("backward")
        sums, grads = self._sum_over_ranks(mx.stack([loss, arrays[2].sum()]), grads)
        mx.eval(sums, grads)
        end_part("sync")
        self._update(sums, grads, lr)
        mx.eval(self._model.parameters(), self._optimizer.state)
        end_part("optimizer")
        return _loss_and_count(sums)

    def _sum_over_ranks(self, sums: mx.array, grads: Any) -> tuple[mx.array, Any]:
        """The sums over all ranks, and the mean of the gradients."""
        if self._ranks == 1:
            return sums, grads
        return mx.distributed.all_sum(sums, group=self._ring), nn.average_gradients(grads, self._ring)

    def _update(self, sums: mx.array, grads: Any, lr: float) -> None:
        """sums: of the losses and of the targets that count. grads: of the sum of losses, a rank's mean."""
        grads = tree_map(lambda each: each * (self._ranks / sums[1]), grads)
        if self._clip_norm is not None:
            grads, _ = optim.clip_grad_norm(grads, self._clip_norm)
        for optimizer in self._optimizers:
            optimizer.learning_rate = lr
        self._optimizer.update(self._model, grads)


def _arrays(batch: FrameworkBatch) -> tuple[mx.array, mx.array, mx.array]:
    return mx.array(batch.tokens_bs), mx.array(batch.targets_bs), mx.array(batch.counts_bs)


def _loss_and_count(sums: mx.array) -> tuple[float, int]:
    loss, count = sums.tolist()
    return loss / count, round(count)


def _adamw(config: RunConfig, *, decay: float) -> optim.AdamW:
    own = config.optimizer
    return optim.AdamW(own.lr, betas=list(own.betas), eps=own.eps, weight_decay=decay, bias_correction=True)
