"""The ranks of a gang, and whether they can share a step and the shards. Pure."""

import math
from typing import NamedTuple

from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig

TIMES = "\N{MULTIPLICATION SIGN}"


class World(NamedTuple):
    """The ranks of a gang: one task per node, `nproc_per_node` ranks each."""

    nodes: int
    nproc_per_node: int

    @property
    def size(self) -> int:
        return self.nodes * self.nproc_per_node

    def __str__(self) -> str:
        nodes = "node" if self.nodes == 1 else "nodes"
        return f"{self.size} ({self.nodes} {nodes} {TIMES} {self.nproc_per_node})"


def check_ranks(config: RunConfig, ranks: World) -> None:
    """Raises ConfigError if so many ranks cannot share the batch or the shards."""
    batch, shard, tensor = config.train.global_batch, config.parallel.shard_size, config.parallel.tensor
    each, per = ranks.nproc_per_node, "a node"
    if config.cluster.backend == "local":  # all nodes are on this host
        each, per = ranks.size, "this host"
    if each % tensor:
        raise ConfigError(f"parallel.tensor = {tensor}: must divide the ranks of {per}, {each}")
    stages = config.parallel.pipeline
    if ranks.size // tensor % stages:
        groups = "number of ranks" if tensor == 1 else f"number of groups of {tensor} ranks"
        raise ConfigError(f"parallel.pipeline = {stages}: must divide the {groups}, {ranks}")
    _enough_micro_batches(config, ranks.size)
    if batch < ranks.size // config.parallel.shared_by:
        times = "" if config.parallel.shared_by == 1 else f", divided by {config.parallel.shared_by}"
        raise ConfigError(f"train.global_batch = {batch}: must be at least the number of ranks, {ranks}{times}")
    if shard is not None and ranks.size % shard:
        raise ConfigError(f"parallel.shard_size = {shard}: must divide the number of ranks, {ranks}")


def _enough_micro_batches(config: RunConfig, ranks: int) -> None:
    train, stages = config.train, config.parallel.pipeline
    most = math.ceil(train.global_batch / max(1, ranks // config.parallel.shared_by))
    passes = math.ceil(most / train.micro_batch)
    if passes < stages:
        raise ConfigError(
            f"train.micro_batch = {train.micro_batch}: makes {passes} of the {most} sequences of a step, and "
            f"parallel.pipeline = {stages} needs one micro batch for each stage"
        )
