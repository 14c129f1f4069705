"""Loss on the held-out split, the same sequences each time, on any number of ranks."""

import math
import time
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from convoy.job.events.types import Evaluated
from convoy.parallel.pipeline import Pipeline
from convoy.training.step import Batch, UrgentStop


@torch.no_grad()
def evaluate(
    model: FSDPModule,
    batches: Sequence[Batch],
    step: int,
    token_bytes_v: torch.Tensor | None,
    control: dist.ProcessGroup,
    passed: Callable[[], None] = lambda: None,
    is_urgent: Callable[[], bool] = lambda: False,
    *,
    shared_by: int = 1,
    pipeline: Pipeline | None = None,
) -> Evaluated | None:
    """Mean loss over the targets of all ranks' batches. All ranks call it, with equally many batches.

    token_bytes_v: UTF-8 bytes of each id (V,); then bits per byte = loss in nats / ln 2 / bytes, all summed.
    passed: called after each batch. is_urgent: called before each: where one rank must stop soon, all return None after
    that batch. shared_by: number of ranks that have the same batches, each of which computes a part of their loss.
    pipeline: of which the model is a stage.
    """
    began = time.perf_counter()
    module = cast(nn.Module, model)
    module.eval()
    nats, tokens, text_bytes = 0.0, 0, 0
    urgent_stop, stopped = UrgentStop(control), False
    for batch in batches:
        urgent_stop.begin(is_urgent())
        inputs = (batch.tokens_bs, batch.targets_bs, batch.documents_bs)
        nats += float(module(*inputs)) if pipeline is None else pipeline.evaluate(inputs)
        tokens += batch.weight
        if token_bytes_v is not None:
            counted = batch.targets_bs[batch.targets_bs >= 0].cpu()
            text_bytes += int(token_bytes_v[counted].sum())
        passed()
        stopped = urgent_stop.finish()
        if stopped:
            break
    module.train()
    if stopped:
        return None
    sums = torch.tensor([nats, tokens, text_bytes], dtype=torch.float64)
    dist.all_reduce(sums, group=control)
    nats, *counts = sums.tolist()
    total, total_bytes = (count / shared_by for count in counts)
    return Evaluated(
        step=step,
        loss=nats / max(1.0, total),
        bits_per_byte=nats / math.log(2) / total_bytes if total_bytes else None,
        tokens=int(total),
        seconds=time.perf_counter() - began,
    )
