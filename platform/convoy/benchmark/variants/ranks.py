"""The ranks of a benchmark's gang: how a rank finds its place and the others, and the worlds that train apart."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
import torch.distributed as dist

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.group import all_gather_objects
from convoy.config.errors import ConfigError, one_line
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.gang.task import RankPosition
from convoy.parallel.mesh import build_mesh
from convoy.storage import StoreUnfit
from convoy.training.process_groups import SAVE_TIMEOUT, TIMEOUT, Ranks, choose_device

T = TypeVar("T")

_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
"""Set for a script's rank by a gang, and by torchrun."""


def place_of_environment(config: RunConfig) -> RankPosition:
    """The place of this rank. All ranks of a local run share one host, whatever nodes they stand for."""
    rank, local_rank, world_size, per_node, node = (int(os.environ[name]) for name in _VARIABLES)
    local = config.cluster.backend == "local"
    on_host = world_size if local else per_node
    return RankPosition(
        rank=rank,
        local_rank=local_rank,
        node=node,
        nodes=world_size // per_node,
        nproc_per_node=per_node,
        host_rank=rank if local else local_rank,
        host_ranks=on_host,
        threads=config.train.threads_per_rank or max(1, len(os.sched_getaffinity(0)) // on_host),
    )


def join_ranks(config: RunConfig, place: RankPosition) -> Ranks:
    """Join the others. All ranks call it."""
    torch.set_num_threads(place.threads)
    # The ranks of each node see only the node's own GPUs, even where nodes share a host.
    own = place.model_copy(update={"host_rank": place.local_rank, "host_ranks": place.nproc_per_node})
    device = choose_device(own, torch.cuda.device_count())
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT, device_id=device if on_gpu else None)
    mesh = build_mesh(config.parallel, device.type, place.world_size, place.nproc_per_node)
    control = dist.new_group(backend="gloo", timeout=TIMEOUT)
    return Ranks(place, device, mesh, control, dist.new_group(backend="gloo", timeout=SAVE_TIMEOUT))


def join_world(ranks: Ranks, size: int, parallel: ParallelConfig) -> Ranks:
    """This rank as one of `size` that train together; ranks 0 to size - 1 are the first world. All ranks of the gang
    call it alike. Raises ConfigError for a size that does not divide the gang."""
    place = ranks.place
    worlds, rest = divmod(place.world_size, size)
    if rest:
        raise ConfigError(f"ranks = {size}: must divide the ranks of the gang, {place.world_size}")
    per_node = min(size, place.nproc_per_node)
    if size % per_node or place.nproc_per_node % per_node:
        raise ConfigError(f"ranks = {size}: must be parts of a node's {place.nproc_per_node} ranks, or whole nodes")
    mesh = build_mesh(parallel, ranks.device.type, size, per_node, worlds)
    if worlds == 1:
        return replace(ranks, mesh=mesh)
    members = [list(range(first, first + size)) for first in range(0, place.world_size, size)]
    world, rank = divmod(place.rank, size)
    controls = [dist.new_group(each, timeout=TIMEOUT, backend="gloo") for each in members]
    training_groups = [dist.new_group(each, timeout=TIMEOUT) for each in members]
    own = {
        "rank": rank,
        "local_rank": rank % per_node,
        "node": rank // per_node,
        "nodes": size // per_node,
        "nproc_per_node": per_node,
    }
    return replace(
        ranks,
        place=place.model_copy(update=own),
        mesh=mesh,
        control=controls[world],
        saving=controls[world],
        training_group=training_groups[world],
    )


class RankFailedError(RuntimeError):
    """What one rank was to do failed, for a reason that lies outside of the program; the text is one line."""


def run_together(work: Callable[[], T], ranks: Ranks) -> T:
    """The result of the work on this rank. What goes wrong in a store or in the configuration of one rank is raised by
    all ranks alike, as RankFailedError, since none may wait for one that has given up. All ranks call it."""
    error = ""
    try:
        result = work()
    except (OSError, StoreUnfit, CheckpointError, ConfigError) as failure:
        error = one_line(failure)
    errors = all_gather_objects(error, ranks.control)
    for rank, each in enumerate(errors):
        if each:
            raise RankFailedError(f"rank {rank}: {each}" if rank else each)
    return result
