"""The collectives of training by themselves: gathers of weights, scatters and sums of gradients, and what they take.

Sizes are of whole tensors. Each is timed in some blocks of operations; a block's time is that of the slowest rank.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from convoy.benchmark.groups import Group
from convoy.benchmark.results.collectives import OPERATIONS, Collective, Operation, as_values
from convoy.benchmark.results.values import LINK_BYTES_PER_SECOND
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.model.counts import parameter_count
from convoy.parallel.fsdp import DTYPES
from convoy.stats.interval import interval
from convoy.training.process_groups import Ranks

MIB = 2**20

SIZES = tuple(n * MIB for n in (1, 4, 16, 64, 256))

BLOCKS = 7

BLOCK_SECONDS = 0.01
"""At least so long is a block, for the clock's sake,"""

MOST_OPERATIONS = 50
"""and at most so many operations."""

SIZE_SECONDS = 1.0
"""A size that would take longer, as the one before it took, is left out, and so are all beyond it."""


class Exchange(NamedTuple):
    """An operation on tensors of its own, to be timed."""

    call: Callable[[], object]
    whole: torch.Tensor
    part: torch.Tensor
    """This rank's, of what it gathers or scatters."""


def of_cases(group: Group, ranks: Ranks) -> dict[str, dict[str, float]]:
    """Values of the group's cases in which all ranks train together, by name. All ranks call it alike."""
    n = ranks.place.world_size
    whole = [spec.name for spec in group.variants if spec.ranks in (None, n) and not spec.at_once]
    if not whole or group.environment is not None:
        return {}
    if "collectives" in group.measures:
        found = sweep(ranks, sizes_of(group.run), group.run)
        return {name: {k: v for each in found for k, v in as_values(each).items()} for name in whole}
    if "communication" in group.measures:
        gathers = sweep(ranks, SIZES[:3], group.run, operations=("all_gather",))
        return {name: {LINK_BYTES_PER_SECOND: max(each.busbw for each in gathers)} for name in whole} if gathers else {}
    return {}


def sizes_of(run: RunConfig) -> list[int]:
    """Powers of four MiB, and one block of the model: as it is gathered, and as its gradient is reduced."""
    if not isinstance(run.model, TransformerConfig):
        return list(SIZES)
    parameters = block_parameters(run.model)
    of_block = {parameters * DTYPES[dtype].itemsize for dtype in (run.train.param_dtype, run.train.reduce_dtype)}
    return sorted({*SIZES, *(n for n in of_block if n <= SIZES[-1])})


def block_parameters(model: TransformerConfig) -> int:
    """Of one decoder block."""
    return parameter_count(model.model_copy(update={"n_layers": model.n_layers + 1})) - parameter_count(model)


def sweep(
    ranks: Ranks, sizes: Sequence[int], run: RunConfig, operations: Sequence[Operation] = OPERATIONS
) -> list[Collective]:
    """Each operation on each size, as far as memory and SIZE_SECONDS allow. Gathers are of `train.param_dtype`, and
    what is reduced is of `train.reduce_dtype`, as in training. All ranks call it alike, and go on or end alike."""
    found: list[Collective] = []
    took, before = 0.0, 0
    for size in sizes:
        if before >= MIB and took * size / before > SIZE_SECONDS:  # below, time is of messages and not of bytes
            break
        if not _has_room(ranks, size):
            break
        began = time.perf_counter()
        for operation in operations:
            dtype = DTYPES[run.train.param_dtype if operation == "all_gather" else run.train.reduce_dtype]
            exchange = operation_of(operation, size, dtype, ranks)
            seconds = interval(_timed(exchange.call, ranks))
            found.append(
                Collective(
                    operation=operation, bytes=exchange.whole.nbytes, ranks=ranks.place.world_size, seconds=seconds
                )
            )
        took, before = _most(time.perf_counter() - began, ranks), size
    return found


def operation_of(operation: Operation, size: int, dtype: torch.dtype, ranks: Ranks) -> Exchange:
    """The whole tensor has `size` bytes, or what more makes equal parts for all ranks."""
    n = ranks.place.world_size
    each = math.ceil(size / (n * dtype.itemsize))
    whole = torch.zeros(each * n, dtype=dtype, device=ranks.device)
    part, group = torch.zeros(each, dtype=dtype, device=ranks.device), ranks.everyone
    calls: dict[Operation, Callable[[], object]] = {
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
    }
    return Exchange(calls[operation], whole, part)


def _timed(call: Callable[[], object], ranks: Ranks) -> list[float]:
    """Seconds of one operation, of each block."""
    _block(call, 1, ranks)  # makes connections and buffers
    once = _block(call, 1, ranks)
    operations = max(1, min(MOST_OPERATIONS, math.ceil(BLOCK_SECONDS / once)))
    return [_block(call, operations, ranks) for _ in range(BLOCKS)]


def _block(call: Callable[[], object], operations: int, ranks: Ranks) -> float:
    _synchronize(ranks.device)
    dist.barrier(group=ranks.control)
    began = time.perf_counter()
    for _ in range(operations):
        call()
    _synchronize(ranks.device)
    return _most((time.perf_counter() - began) / operations, ranks)


def _most(value: float, ranks: Ranks) -> float:
    """Over all ranks: they decide alike."""
    told = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(told, op=dist.ReduceOp.MAX, group=ranks.control)
    return float(told)


def _has_room(ranks: Ranks, size: int) -> bool:
    """For the tensor, its part, and as much again within the library, on every rank."""
    if ranks.device.type == "cuda":
        free = float(torch.cuda.mem_get_info(ranks.device)[0])
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / ranks.place.host_ranks
    return -_most(-free, ranks) > 4 * size


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
