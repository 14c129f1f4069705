"""DeepSpeed's ZeRO: stage 1 shards the optimizer's state, 2 gradients too, 3 weights too."""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed
import torch
import torch.nn.functional as F
from deepspeed.utils import logger

from convoy.benchmark.variants.peer import whole_model
from convoy.benchmark.variants.variant import Held, moments
from convoy.config.run import RunConfig
from convoy.config.train import split_batch
from convoy.training.batch import Batch
from convoy.training.optimizer import adamw, set_learning_rate
from convoy.training.process_groups import Ranks


class DeepSpeedZero:
    """With bf16, weights are bf16 and their masters fp32, as DeepSpeed has them; gradients are reduced in our type."""

    def __init__(self, config: RunConfig, ranks: Ranks, stage: int) -> None:
        _silence_logging()
        if ranks.device.type == "cpu":
            # DeepSpeed would compile a sum in shared memory that only inference uses, unless this table forbids it.
            vars(deepspeed.ops).setdefault("__compatible_ops__", {})
        model = whole_model(config, ranks)
        self.parameters = sum(p.numel() for p in model.parameters())
        self._linear = F.linear
        with self._own_linear():
            self._engine, self._optimizer, *_ = deepspeed.initialize(
                model=model,
                optimizer=adamw(model, config.optimizer),
                config=deepspeed_config(config, ranks.place.world_size, stage),
                dist_init_required=False,
            )

    def forward_backward(self, batch: Batch, scale: Callable[[], float], *, last: bool) -> torch.Tensor:
        with self._own_linear():
            loss: torch.Tensor = self._engine(batch.tokens_bs, batch.targets_bs, batch.documents_bs)
            self._engine.backward(loss * scale(), scale_wrt_gas=False)
            if not last:
                self._engine.step()  # counts micro batches, and updates after the last one
        return loss.detach()

    def update(self, lr: float) -> None:
        set_learning_rate(self._optimizer, lr)
        with self._own_linear():
            self._engine.step()

    def held(self) -> Held:
        whole = list(self._engine.module.parameters())
        parameters = [*whole, *(p.ds_tensor for p in whole if hasattr(p, "ds_tensor"))]
        memory = {tensor.untyped_storage().data_ptr() for tensor in parameters}
        updated = [p for group in self._optimizer.param_groups for p in group["params"]]
        # In fp32, stage 3 updates the shards themselves.
        masters = [p for p in updated if p.untyped_storage().data_ptr() not in memory]
        return {
            "parameters": parameters,
            "optimizer": [*masters, *moments(self._optimizer.optimizer)],
            "gradients": list(self._gradients()),
        }

    def _gradients(self) -> Iterator[torch.Tensor]:
        """Stage 3 keeps this rank's part of them, and a bucket for those that are reduced next, filled or not."""
        part = getattr(self._optimizer, "grad_partitions_flat_buffer", None)
        buckets = (bucket.buffer for bucket in self._optimizer.ipg_buckets.values())
        yield from (buffer for buffer in (part, *buckets) if isinstance(buffer, torch.Tensor))

    @contextmanager
    def _own_linear(self) -> Iterator[None]:
        """Stage 3 replaces torch's function for the whole process; this limits it to DeepSpeed's own calls."""
        before = F.linear
        F.linear = self._linear
        try:
            yield
        finally:
            self._linear, F.linear = F.linear, before


def _silence_logging() -> None:
    """Suppress lines on the set-up and on deprecated collectives, which DeepSpeed would print in each step."""
    logger.setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)


def deepspeed_config(config: RunConfig, ranks: int, stage: int) -> dict[str, Any]:
    """DeepSpeed's configuration: its own defaults, with communication that overlaps computation in all stages."""
    train = config.train
    passes, rows = split_batch(train.global_batch, ranks, train.micro_batch)
    return {
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": passes,
        "gradient_clipping": train.clip_norm or 0.0,
        "bf16": {"enabled": train.param_dtype == "bf16"},
        "communication_data_type": {"fp32": "fp32", "bf16": "bfp16"}[train.reduce_dtype],
        "zero_optimization": {"stage": stage, "overlap_comm": True},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": sys.maxsize,
    }
