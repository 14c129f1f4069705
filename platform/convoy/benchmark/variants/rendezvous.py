"""A script's rank finds its place and meets the others by the environment, as under a gang or torchrun."""

import os

import torch
import torch.distributed as dist

from convoy.config.run import RunConfig
from convoy.gang.assignment import Place
from convoy.parallel.mesh import build_mesh
from convoy.training.process_groups import SAVE_TIMEOUT, TIMEOUT, Ranks, choose_device

_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def place_of_environment(config: RunConfig) -> Place:
    """Of this rank. Ranks of a local run share one host, whatever nodes they stand for."""
    told = {name: int(os.environ[name]) for name in _VARIABLES}
    local = config.cluster.backend == "local"
    on_host = told["WORLD_SIZE"] if local else told["LOCAL_WORLD_SIZE"]
    cores = len(os.sched_getaffinity(0))
    return Place(
        rank=told["RANK"],
        local_rank=told["LOCAL_RANK"],
        node=told["GROUP_RANK"],
        nodes=told["WORLD_SIZE"] // told["LOCAL_WORLD_SIZE"],
        nproc_per_node=told["LOCAL_WORLD_SIZE"],
        host_rank=told["RANK"] if local else told["LOCAL_RANK"],
        host_ranks=on_host,
        threads=config.train.threads_per_rank or max(1, cores // on_host),
    )


def ranks_of_environment(config: RunConfig, place: Place) -> Ranks:
    """Meet the others. All ranks call it."""
    torch.set_num_threads(place.threads)
    # Each node's ranks see its own GPUs only, also where nodes share a host.
    own = place.model_copy(update={"host_rank": place.local_rank, "host_ranks": place.nproc_per_node})
    device = choose_device(own, torch.cuda.device_count())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        timeout=TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
    mesh = build_mesh(config.parallel, device.type, place.world_size, place.nproc_per_node)
    control = dist.new_group(backend="gloo", timeout=TIMEOUT)
    return Ranks(place, device, mesh, control, dist.new_group(backend="gloo", timeout=SAVE_TIMEOUT))
