"""The collectives of training by themselves: gathers of weights, and reductions of gradients as scatters and sums.

Sizes are of whole tensors. Each collective is timed in some blocks of operations; a block's time is that of the slowest
rank.
"""

import math
import os
import time
from collections.abc import Sequence

import torch

from convoy.benchmark.groups import Group
from convoy.benchmark.results.collectives import OPERATIONS, CollectiveTiming, Operation, timing_values
from convoy.benchmark.results.values import LINK_BYTES_PER_SECOND
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.model.counts import parameter_count
from convoy.network.collectives.exact import ExactProblem
from convoy.network.collectives.exchange import Exchange, backend_exchange
from convoy.network.timing import Meeting, time_in_turns
from convoy.parallel.fsdp import DTYPES
from convoy.stats.interval import interval
from convoy.training.measure.machine import max_over_ranks
from convoy.training.process_groups import Ranks

MIB = 2**20

SIZES = tuple(n * MIB for n in (1, 4, 16, 64, 256))

BLOCKS = 7

BLOCK_SECONDS = 0.01
"""Least length of a block, which the clock needs."""

SIZE_SECONDS = 1.0
"""A size that would take longer, judging by the size before it, is left out, and so are all larger ones."""


def measure_collectives(group: Group, ranks: Ranks) -> dict[str, dict[str, float]]:
    """Values of the group's cases in which all ranks train together, by name. All ranks call it alike."""
    whole = [spec.name for spec in group.variants if spec.ranks in (None, ranks.place.world_size) and not spec.at_once]
    values: dict[str, float] = {}
    if not whole:
        return {}
    if "collectives" in group.measures:
        for each in sweep(ranks, swept_sizes(group.run), group.run):
            values |= timing_values(each)
    elif "communication" in group.measures and (gathers := sweep(ranks, SIZES[:3], group.run, ("all_gather",))):
        values[LINK_BYTES_PER_SECOND] = max(each.busbw for each in gathers)
    return dict.fromkeys(whole, values) if values else {}


def swept_sizes(run: RunConfig) -> list[int]:
    """Powers of four MiB, and one block of the model: as it is gathered, and as its gradient is reduced."""
    if not isinstance(run.model, TransformerConfig):
        return list(SIZES)
    parameters = block_parameters(run.model)
    of_block = {parameters * DTYPES[dtype].itemsize for dtype in (run.train.param_dtype, run.train.reduce_dtype)}
    return sorted({*SIZES, *(n for n in of_block if n <= SIZES[-1])})


def block_parameters(model: TransformerConfig) -> int:
    return parameter_count(model.model_copy(update={"n_layers": model.n_layers + 1})) - parameter_count(model)


def sweep(
    ranks: Ranks, sizes: Sequence[int], run: RunConfig, operations: Sequence[Operation] = OPERATIONS
) -> list[CollectiveTiming]:
    """Each operation on each size, as far as memory and SIZE_SECONDS allow. Gathers are of `train.param_dtype`, and
    reductions of `train.reduce_dtype`, as in training. All ranks call it alike, and stop at the same size."""
    collectives: list[CollectiveTiming] = []
    meeting = Meeting(ranks.place.rank, ranks.place.world_size, ranks.control, ranks.device, ())
    took, before = 0.0, 0
    for size in sizes:
        if before >= MIB and took * size / before > SIZE_SECONDS:  # below a MiB, the time is of messages, not of bytes
            break
        if not has_room(ranks, size * len(operations)):
            break
        began = time.perf_counter()
        exchanges = {operation: make_exchange(operation, size, run, ranks) for operation in operations}
        calls = {operation: exchange.run for operation, exchange in exchanges.items()}
        measured = time_in_turns(calls, meeting, BLOCKS, block_seconds=BLOCK_SECONDS)
        for operation, exchange in exchanges.items():
            problem, times = exchange.problem, measured[operation]
            n_bytes, seconds = problem.total * problem.dtype.itemsize, interval(times.blocks)
            collectives.append(
                CollectiveTiming(operation=operation, bytes=n_bytes, ranks=problem.ranks, seconds=seconds)
            )
        took, before = max_over_ranks(time.perf_counter() - began, ranks), size
    return collectives


def make_exchange(operation: Operation, size: int, run: RunConfig, ranks: Ranks) -> Exchange:
    """The whole tensor has `size` bytes, rounded up to equal parts for all ranks."""
    n, place = ranks.place.world_size, ranks.place
    dtype = DTYPES[run.train.param_dtype if operation == "all_gather" else run.train.reduce_dtype]
    total = n * math.ceil(size / (n * dtype.itemsize))
    problem = ExactProblem(operation, place.rank, n, total, dtype, ranks.device)
    return backend_exchange(problem, ranks.training_group)


def has_room(ranks: Ranks, size: int) -> bool:
    """Whether every rank has memory for the tensor, its part, and as much again within the library."""
    if ranks.device.type == "cuda":
        free = float(torch.cuda.mem_get_info(ranks.device)[0])
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / ranks.place.host_ranks
    return -max_over_ranks(-free, ranks) > 4 * size
