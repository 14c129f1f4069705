"""Seconds of calls on this rank, while all ranks make the same ones."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from convoy.training.process_groups import Ranks

TIMES = 5
"""At least so often is each thing done: the middle of fewer times may have been disturbed."""

MOST_TIMES = 200


def median_seconds(call: Callable[[], object], ranks: Ranks, seconds: float) -> float:
    """Median seconds of one call on this rank, while every rank does the same."""
    call()
    dist.barrier(group=ranks.control)
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while len(times) < TIMES or (time.perf_counter() < ends and len(times) < MOST_TIMES):
        times.append(_seconds(call, ranks))
    return statistics.median(times)


def slowest_seconds(call: Callable[[], object], ranks: Ranks) -> float:
    """Seconds of a call, of the slowest rank, on all ranks."""
    return slowest(seconds_here(call, ranks), ranks)


def seconds_here(call: Callable[[], object], ranks: Ranks) -> float:
    """Seconds of a call that all ranks begin together, on this one."""
    synchronize(ranks.device)
    dist.barrier(group=ranks.control)
    return _seconds(call, ranks)


def _seconds(call: Callable[[], object], ranks: Ranks) -> float:
    synchronize(ranks.device)
    began = time.perf_counter()
    call()
    synchronize(ranks.device)
    return time.perf_counter() - began


def slowest(seconds: float, ranks: Ranks) -> float:
    """Seconds of the slowest rank, on all ranks."""
    told = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(told, op=dist.ReduceOp.MAX, group=ranks.control)
    return float(told)


def random(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    noise = torch.Generator(device).manual_seed(0)  # of its own: the model's is not touched
    return torch.randn(shape, device=device, generator=noise, dtype=dtype)  # in fp32 it would take memory twice


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that is enqueued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
