"""Where each worker of a node stands in the gang, and on its host. Pure but for the count of cores."""

import os
from collections.abc import Callable

from convoy.config.run import RunConfig
from convoy.gang.assignment import Place
from convoy.gang.task import Node


def place_of(local_rank: int, node: Node, threads: int) -> Place:
    """Where a worker of a node stands in the gang."""
    rank = node.first_rank + local_rank
    return Place(
        rank=rank,
        local_rank=local_rank,
        node=node.index,
        nodes=node.nodes,
        nproc_per_node=node.nproc_per_node,
        host_rank=rank if node.shares_host else local_rank,
        host_ranks=ranks_on_host(node),
        threads=threads,
    )


def ranks_on_host(node: Node) -> int:
    """Ranks that share the cores and GPUs of the node's host."""
    return node.nproc_per_node * (node.nodes if node.shares_host else 1)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def threads_per_rank(config: RunConfig, node: Node, cores: Callable[[], int] = usable_cores) -> int:
    """Intra-op CPU threads of a rank: the host's cores shared evenly by the ranks on it, unless configured."""
    if config.train.threads_per_rank is not None:
        return config.train.threads_per_rank
    return max(1, cores() // ranks_on_host(node))
