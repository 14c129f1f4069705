"""Several trainings side by side in one gang: its ranks cut into worlds of equal size."""

from dataclasses import replace

import torch.distributed as dist

from convoy.config.errors import ConfigError
from convoy.config.parallel import ParallelConfig
from convoy.gang.assignment import Place
from convoy.parallel.mesh import build_mesh
from convoy.training.process_groups import TIMEOUT, Ranks


def world_of(ranks: Ranks, size: int, parallel: ParallelConfig) -> Ranks:
    """This rank as one of `size` that train together; ranks 0 to size - 1 are the first world. All ranks of the gang
    call it alike. Raises ConfigError for a size that does not divide the gang."""
    place = ranks.place
    worlds, left = divmod(place.world_size, size)
    if left:
        raise ConfigError(f"ranks = {size}: must divide the ranks of the gang, {place.world_size}")
    per_node = min(size, place.nproc_per_node)
    if size % per_node or place.nproc_per_node % per_node:
        raise ConfigError(f"ranks = {size}: must be parts of a node's {place.nproc_per_node} ranks, or whole nodes")
    mesh = build_mesh(parallel, ranks.device.type, size, per_node, worlds)
    if worlds == 1:
        return replace(ranks, mesh=mesh)
    members = [list(range(first, first + size)) for first in range(0, place.world_size, size)]
    own = place.rank // size
    controls = [dist.new_group(world, timeout=TIMEOUT, backend="gloo") for world in members]
    everyone = [dist.new_group(world, timeout=TIMEOUT) for world in members]
    return replace(
        ranks,
        place=_place(place, size, per_node),
        mesh=mesh,
        control=controls[own],
        saving=controls[own],
        everyone=everyone[own],
    )


def _place(place: Place, size: int, per_node: int) -> Place:
    rank = place.rank % size
    return place.model_copy(
        update={
            "rank": rank,
            "local_rank": rank % per_node,
            "node": rank // per_node,
            "nodes": size // per_node,
            "nproc_per_node": per_node,
        }
    )
