"""FLOPs of a user's own module, which no formula knows."""

from contextlib import suppress
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from convoy.config.model import CustomModelConfig
from convoy.model.custom import CustomTask, build_module


def count_task_flops(config: CustomModelConfig, batch: Any, rows: int) -> float | None:
    """FLOPs of forward and backward for each sample of a batch, without recomputation, by torch's FLOP counter: of
    matrix products, convolutions and attention. None where the module cannot run on the meta device, such as one that
    reads values of its tensors.

    batch: as the module takes it. rows: samples in it, at least 1.
    """
    with suppress(Exception), torch.random.fork_rng(devices=[]):  # whatever of a user's module meta tensors cannot do
        with torch.device("meta"):
            task = CustomTask(config, build_module(config, 0, values=False))
            on_meta = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), batch)
            with FlopCounterMode(display=False) as counter:
                task(on_meta, rows).backward()
        return counter.get_total_flops() / rows or None
    return None
