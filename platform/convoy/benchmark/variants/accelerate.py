"""accelerate's FSDP2: its plugin shards the model, its wrappers clip and update."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType

from convoy.benchmark.variants.peer import whole_model
from convoy.benchmark.variants.variant import Held, moments
from convoy.config.run import RunConfig
from convoy.parallel.fsdp import mixed_precision
from convoy.training.batch import Batch
from convoy.training.optimizer import adamw, set_learning_rate
from convoy.training.process_groups import Ranks


class AccelerateFsdp2:
    """The plugin as it is but for three things: it shards by our blocks, reduces in our types, which for bf16 would
    otherwise be bf16, and takes the weights that each rank has."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        """There can be one per process, since accelerate has one state in each."""
        model = whole_model(config, ranks)
        self.parameters = sum(p.numel() for p in model.parameters())
        with _process_left_alone():
            self._accelerator = _accelerator(_plugin(model, config), config, cpu=ranks.device.type == "cpu")
            self._model, self._optimizer = self._accelerator.prepare(model, adamw(model, config.optimizer))
        self._clip_norm = config.train.clip_norm

    def forward_backward(self, batch: Batch, scale: Callable[[], float], *, last: bool) -> torch.Tensor:
        with nullcontext() if last else self._accelerator.no_sync(self._model):
            loss: torch.Tensor = self._model(batch.tokens_bs, batch.targets_bs, batch.documents_bs)
            self._accelerator.backward(loss * scale())
        return loss.detach()

    def update(self, lr: float) -> None:
        if self._clip_norm is not None:
            self._accelerator.clip_grad_norm_(self._model.parameters(), self._clip_norm)
        set_learning_rate(self._optimizer, lr)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def held(self) -> Held:
        return {"parameters": list(self._model.parameters()), "optimizer": list(moments(self._optimizer))}


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


def _accelerator(plugin: FullyShardedDataParallelPlugin, config: RunConfig, *, cpu: bool) -> Accelerator:
    mixed_precision = "bf16" if config.train.param_dtype == "bf16" else "no"
    accelerator = Accelerator(cpu=cpu, mixed_precision=mixed_precision, fsdp_plugin=plugin)
    if cpu:  # accelerate ignores the plugin on a CPU, though all that follows works on gloo
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    return accelerator


@contextmanager
def _process_left_alone() -> Iterator[None]:
    """Restore the threads and variables that accelerate sets for the whole process, and so for all other variants."""
    threads, before = torch.get_num_threads(), dict(os.environ)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # else accelerate chooses, with a warning
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
