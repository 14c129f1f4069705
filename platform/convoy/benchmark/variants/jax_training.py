"""JAX: the decoder in Flax NNX, AdamW of Optax, one compiled step in which XLA sums the gradients over the ranks.

Ranks are processes of `jax.distributed`, whose service rank 0 of the gang runs; on CPUs their collectives are gloo's.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch.distributed as dist
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as Spec

from convoy.benchmark.results.values import COMPILE_SECONDS
from convoy.benchmark.variants.framework import FrameworkBatch, Part, find_free_address, initial_weights
from convoy.benchmark.variants.jax_decoder import decayed, decoder_state
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.training.process_groups import Ranks

Arrays = tuple[jax.Array, jax.Array, jax.Array]
"""Tokens, targets and counts of a batch."""


def connect_processes(ranks: Ranks) -> None:
    """Make this rank's process one of JAX's, once. ranks: all of the gang; all call it alike."""
    if jax.distributed.is_initialized():
        return
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    place, address = ranks.place, [find_free_address() if ranks.first else ""]
    dist.broadcast_object_list(address, group=ranks.control, group_src=0)
    jax.distributed.initialize(address[0], num_processes=place.world_size, process_id=place.rank)


class JaxTraining:
    """Weights and moments are replicated, batches are divided: data parallelism as JAX's documentation writes it."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        """ranks: those that train together: all processes of JAX, or this one alone."""
        shape = config.model
        assert isinstance(shape, TransformerConfig)
        graph, state = decoder_state(shape, initial_weights(config))
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(state))
        self.values: dict[str, float] = {}
        devices = jax.devices() if ranks.place.world_size > 1 else jax.local_devices()
        mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)
        self._replicated, self._divided = NamedSharding(mesh, Spec()), NamedSharding(mesh, Spec("data"))
        self._optimizer = _adamw(config, state)
        self._state = self._replicate((state, self._optimizer.init(state)))

        def loss_sum(params: nnx.State, batch: Arrays) -> jax.Array:
            tokens_bs, targets_bs, counts_bs = batch
            logits_bsv = nnx.merge(graph, params)(tokens_bs)
            losses_bs = optax.softmax_cross_entropy_with_integer_labels(logits_bsv, targets_bs)
            return jnp.sum(losses_bs * counts_bs)

        def update(state: Any, grads: nnx.State, lr: jax.Array) -> Any:
            params, moments = state
            updates, moments = self._optimizer.update(grads, moments, params)
            return optax.apply_updates(params, jax.tree.map(lambda each: -lr * each, updates)), moments

        def step(state: Any, batch: Arrays, lr: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
            count = jnp.sum(batch[2])
            loss, grads = jax.value_and_grad(lambda params: loss_sum(params, batch) / count)(state[0])
            return update(state, grads, lr), loss, count

        whole = (self._replicated, self._replicated, self._replicated)
        self._step = jax.jit(step, donate_argnums=0, out_shardings=whole)
        self._compiled: Any = None
        # The parts, on this rank's own copy of the weights; a sum over ranks is that of arrays with a row of each.
        self._forward = jax.jit(lambda params, batch: jax.vjp(lambda each: loss_sum(each, batch), params))
        self._backward = jax.jit(lambda pull: pull(jnp.ones(()))[0])
        self._add_row = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf[None], tree))
        self._sum_rows = jax.jit(
            lambda tree: jax.tree.map(lambda leaf: leaf.sum(0), tree), out_shardings=self._replicated
        )
        self._update = jax.jit(
            lambda state, grads, count, lr: update(state, jax.tree.map(lambda each: each / count, grads), lr),
            donate_argnums=0,
        )

    def step(self, batch: FrameworkBatch, lr: float) -> tuple[float, int]:
        arrays, rate = self._divide(batch), np.float32(lr)
        if self._compiled is None:
            began = time.perf_counter()
            self._compiled = self._step.lower(self._state, arrays, rate).compile()
            self.values[COMPILE_SECONDS] = time.perf_counter() - began
        self._state, loss, count = self._compiled(self._state, arrays, rate)
        return float(loss), round(float(count))

    def step_in_parts(self, batch: FrameworkBatch, lr: float, end_part: Callable[[Part], None]) -> tuple[float, int]:
        own = jax.tree.map(lambda leaf: leaf.addressable_data(0), self._state)
        arrays = (jnp.asarray(batch.tokens_bs), jnp.asarray(batch.targets_bs), jnp.asarray(batch.counts_bs))
        jax.block_until_ready((own, arrays))
        end_part("data")
        loss, pull = jax.block_until_ready(self._forward(own[0], arrays))
        end_part("forward")
        grads = jax.block_until_ready(self._backward(pull))
        end_part("backward")
        loss, count, grads = self._sum_over_ranks((loss, np.float32(batch.counts_bs.sum()), grads))
        end_part("sync")
        own = jax.block_until_ready(self._update(own, grads, count, np.float32(lr)))
        end_part("optimizer")
        self._state = jax.tree.map(self._as_replica, own)
        return float(loss) / float(count), round(float(count))

    def _sum_over_ranks(self, tree: Any) -> Any:
        rows = jax.tree.map(self._as_part, self._add_row(tree))
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), jax.block_until_ready(self._sum_rows(rows)))

    def _as_part(self, row: jax.Array) -> jax.Array:
        """Of an array whose other rows the other ranks have."""
        shape = (self._divided.mesh.size, *row.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self._divided, [row])

    def _as_replica(self, leaf: jax.Array) -> jax.Array:
        return jax.make_array_from_single_device_arrays(leaf.shape, self._replicated, [leaf])

    def _replicate(self, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: self._as_replica(jax.device_put(leaf, jax.local_devices()[0])), tree)

    def _divide(self, batch: FrameworkBatch) -> Arrays:
        parts = (batch.tokens_bs, batch.targets_bs, batch.counts_bs)
        tokens, targets, counts = (jax.make_array_from_process_local_data(self._divided, part) for part in parts)
        return tokens, targets, counts


def _adamw(config: RunConfig, state: nnx.State) -> optax.GradientTransformation:
    """Clipping and AdamW without the learning rate, which each step applies."""
    train, own = config.train, config.optimizer
    mask = decayed(state, embeddings=own.decay_embeddings)
    return optax.chain(
        optax.identity() if train.clip_norm is None else optax.clip_by_global_norm(train.clip_norm),
        optax.scale_by_adam(*own.betas, eps=own.eps),
        optax.add_decayed_weights(own.weight_decay, mask),
    )
