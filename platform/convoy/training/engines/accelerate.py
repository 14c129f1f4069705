"""accelerate's FSDP2 as an engine: its plugin shards the model, its wrapped optimizer updates."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from convoy.config.run import RunConfig
from convoy.parallel.batch_norm import run_batch_norm_in_fp32
from convoy.parallel.fsdp import mixed_precision
from convoy.training.batch import Batch
from convoy.training.build import build_whole_model
from convoy.training.engines.engine import Fsdp2Engine
from convoy.training.optimizer import adamw, set_learning_rate
from convoy.training.process_groups import Ranks


class AccelerateEngine(Fsdp2Engine):
    """The plugin as it is but for three things: it shards by our blocks, reduces in our types, which for bf16 would
    otherwise be bf16, and takes the weights that each rank has."""

    def __init__(self, config: RunConfig, ranks: Ranks, *, with_weights: bool = True) -> None:
        """with_weights: False leaves a transformer's weights undefined, for a checkpoint to fill."""
        model = build_whole_model(config, ranks, with_weights=with_weights)
        self.parameters = sum(p.numel() for p in model.parameters())
        if config.train.param_dtype == "bf16":
            run_batch_norm_in_fp32(model)
        with process_left_alone():
            self.accelerator = make_accelerator(_plugin(model, config), config, cpu=ranks.device.type == "cpu")
            self.module, self._wrapped = self.accelerator.prepare(model, adamw(model, config.optimizer))
        self._forward: Callable[..., torch.Tensor] = self.module
        self.optimizer = self._wrapped.optimizer
        self._clip_norm = config.train.clip_norm
        self._norm = torch.zeros(())

    def forward_backward(self, batch: Batch, scale: Callable[[], float], *, last: bool) -> torch.Tensor:
        # As `no_sync` does, which would ask for the process's state, and so make one.
        cast(FSDPModule, self.module).set_requires_gradient_sync(last)
        loss = self._forward(*batch.inputs)
        self.accelerator.backward(loss * scale())
        return loss.detach()

    def grad_norm(self, sums: torch.Tensor, own_part_done: Callable[[], None]) -> float:
        """What `clip_grad_norm_` computes before it clips."""
        grads = [p.grad for p in self.module.parameters() if p.grad is not None]
        norm = get_total_norm(grads, foreach=True)
        own_part_done()
        self._norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        dist.all_reduce(sums)
        return float(self._norm)

    def update(self, lr: float, norm: float, factor: float = 1.0) -> None:
        if factor != 1.0:
            torch._foreach_mul_([p.grad for p in self.module.parameters() if p.grad is not None], factor)
        if self._clip_norm is not None:
            clip_grads_with_norm_(self.module.parameters(), self._clip_norm, self._norm * factor, foreach=True)
        self.step(lr)

    def step(self, lr: float) -> None:
        """Update without clipping."""
        set_learning_rate(self.optimizer, lr)
        self._wrapped.step()

    def drop_gradients(self) -> None:
        self._wrapped.zero_grad()


def _plugin(model: torch.nn.Module, config: RunConfig) -> FullyShardedDataParallelPlugin:
    blocks: Any = model.blocks
    # A block that is recomputed is inside a wrapper, which the plugin looks through.
    classes = {type(getattr(block, "_checkpoint_wrapped_module", block)).__name__ for block in blocks}
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=config.parallel.reshard_after_forward,
        mixed_precision_policy=mixed_precision(config.train),
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=sorted(classes),
        cpu_ram_efficient_loading=False,
    )


def make_accelerator(plugin: FullyShardedDataParallelPlugin, config: RunConfig, *, cpu: bool) -> Accelerator:
    """With the plugin in effect on a CPU too; in bf16 where the run computes in it."""
    mixed_precision = "bf16" if config.train.param_dtype == "bf16" else "no"
    accelerator = Accelerator(cpu=cpu, mixed_precision=mixed_precision, fsdp_plugin=plugin)
    if cpu:  # accelerate ignores the plugin on a CPU, though all that follows works on gloo
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    return accelerator


@contextmanager
def process_left_alone() -> Iterator[None]:
    """Restore the threads, variables and states that accelerate sets for the whole process.

    A process with a state trains otherwise: losses of transformers for detection are then sums over all ranks of the
    world, which waits forever for ranks that have no part in the training, and differs from those of other engines.
    """
    threads, before = torch.get_num_threads(), dict(os.environ)
    shared = {kind: kind._shared_state for kind in (PartialState, AcceleratorState, GradientState)}
    for kind in shared:
        kind._shared_state = {}
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # else accelerate chooses, with a warning
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        for kind, state in shared.items():
            kind._shared_state = state
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
