"""The ways to train a model on so many machines that a search looks at."""

import math
from collections.abc import Iterator
from typing import Any

from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig
from convoy.planner.workload import Machine, Workload

TENSOR = (2, 4, 8)
"""Ranks of one machine that share products."""

SHARD_NODES = (2, 4, 8)
"""Machines of a sharding group of `hsdp`, other than one."""

STAGES = (2, 4, 8, 16)
"""Stages of a pipeline."""

LARGEST_MICRO_BATCH = 64


def workloads(
    model: TransformerConfig, sequence_length: int, train: TrainConfig, machine: Machine, nodes: int
) -> Iterator[list[Workload]]:
    """Each list is one way to spread the model and to recompute, by micro batch from the smallest on: memory grows
    along it. train: global batch, types, and whether blocks are compiled, as far as a way allows it. None where there
    are more ranks than sequences."""
    for parallel in _ways(model, machine, nodes):
        for recomputed in ("none", "selective", "full"):
            if parallel.wrap == "linear" and recomputed == "selective":
                continue
            update = {"activation_checkpointing": recomputed, "compile": train.compile and _compiles(parallel)}
            changed = train.model_copy(update=update)
            sized = list(_sizes(model, sequence_length, changed, parallel, machine, nodes))
            if sized:
                yield sized


def _sizes(
    model: TransformerConfig,
    sequence_length: int,
    train: TrainConfig,
    parallel: ParallelConfig,
    machine: Machine,
    nodes: int,
) -> Iterator[Workload]:
    """Micro batches that cut a step into equal passes; where ranks cannot have equally many sequences, all that make
    another number of passes, as training evens them out. Where gradients are kept whole between passes there must be
    several, and in a pipeline one for each stage."""
    whole = Workload(model, sequence_length, train, parallel, machine, nodes)
    if train.global_batch < whole.data_ranks:
        return
    count, even = whole.sequences_per_rank, train.global_batch % whole.data_ranks == 0
    for size in range(1, min(count, LARGEST_MICRO_BATCH) + 1):
        passes = math.ceil(count / size)
        cuts = count % size == 0 if even else size == math.ceil(count / passes)
        if not cuts or (passes == 1 and not parallel.reduce_every_pass) or passes < parallel.pipeline:
            continue
        update = {"micro_batch": size}
        yield Workload(model, sequence_length, train.model_copy(update=update), parallel, machine, nodes)


def _ways(model: TransformerConfig, machine: Machine, nodes: int) -> Iterator[ParallelConfig]:
    for strategy in _strategies(model, machine, nodes):
        for wrap in ("block", "linear"):
            for every in (True,) if strategy.get("pipeline") else (True, False):
                yield ParallelConfig.model_validate({**strategy, "wrap": wrap, "reduce_every_pass": every})


def _strategies(model: TransformerConfig, machine: Machine, nodes: int) -> Iterator[dict[str, Any]]:
    ranks = machine.ranks
    for reshard in (True, False):
        yield {"reshard_after_forward": reshard}
        if nodes > 1:
            yield {"strategy": "hsdp", "shard_size": ranks, "reshard_after_forward": reshard}
    for count in SHARD_NODES:
        if nodes > count and nodes % count == 0:
            yield {"strategy": "hsdp", "shard_size": count * ranks}
    if nodes * ranks > 1:
        yield {"strategy": "ddp"}
    tensors = [shared for shared in TENSOR if ranks % shared == 0 and _divides(model, shared)]
    yield from ({"tensor": shared} for shared in tensors)
    for stages in STAGES if _has_stages(model) else ():
        for shared in (1, *tensors):
            if stages <= model.n_layers and nodes * ranks % (shared * stages) == 0:
                yield {"pipeline": stages, "tensor": shared}


def _divides(model: TransformerConfig, ranks: int) -> bool:
    return not any(size % ranks for size in model.split_sizes.values())


def _has_stages(model: TransformerConfig) -> bool:
    """Embedding and head are on two stages, and each fills its own weights."""
    return not model.tied_embeddings and model.init_from is None


def _compiles(parallel: ParallelConfig) -> bool:
    """With `tensor` and `pipeline` it is refused, and a block that is gathered matrix by matrix breaks at each
    gather."""
    return parallel.shared_by == 1 and parallel.wrap == "block"
