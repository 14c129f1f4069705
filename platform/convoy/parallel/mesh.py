"""The ranks as a mesh."""

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from convoy.config.errors import ConfigError
from convoy.config.parallel import ParallelConfig


def build_mesh(
    config: ParallelConfig, device_type: str, world_size: int, ranks_per_node: int, trainings: int = 1
) -> DeviceMesh:
    """A mesh over all ranks: `("shard",)` for fsdp, `("replicate", "shard")` for hsdp and ddp; with model
    parallelism `("pipeline", "shard", "tensor")`, without those that are 1, so that neighbours share matrix products.

    ddp is hsdp in groups of one rank: parameters are DTensors like all others, so that checkpoints, gradient norm and
    resharding need to know nothing of it. torch's own `replicate` on top of FSDP2 does the same, takes the same time
    (ratio of CPU time 0.996, 95 % interval 0.985 to 1.014: two ranks, gloo, bf16), and has no public name.

    trainings: how many of `world_size` ranks there are side by side, the first ranks in the first one; each rank
    gets the mesh of its own. Raises ConfigError if the groups do not divide the world.
    """
    shape, names = _mesh_axes(config, world_size, ranks_per_node)
    if trainings == 1:
        return init_device_mesh(device_type, shape, mesh_dim_names=names)
    return init_device_mesh(device_type, (trainings, *shape), mesh_dim_names=("world", *names))[names]


def data_submesh(mesh: DeviceMesh) -> DeviceMesh:
    """The part of the mesh over which weights are sharded and replicated."""
    names = _data_dims(mesh)
    return mesh if names == mesh.mesh_dim_names else mesh[names]


def data_rank_and_size(mesh: DeviceMesh) -> tuple[int, int]:
    """Which of how many parts of a batch this rank takes: ranks that share a model's parts take the same one."""
    place, count = 0, 1
    for name in _data_dims(mesh):
        place = place * mesh[name].size() + mesh.get_local_rank(name)
        count *= mesh[name].size()
    return place, count


def _data_dims(mesh: DeviceMesh) -> tuple[str, ...]:
    return tuple(name for name in mesh.mesh_dim_names or () if name in ("replicate", "shard"))


def _mesh_axes(config: ParallelConfig, world_size: int, ranks_per_node: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if config.strategy == "fsdp":
        shards, left = divmod(world_size, config.ranks_per_sample)
        if left:
            key, size = ("tensor", config.tensor) if world_size % config.tensor else ("pipeline", config.pipeline)
            raise ConfigError(f"parallel.{key} = {size}: must divide the number of ranks, {world_size}")
        sizes = {"pipeline": config.pipeline, "shard": shards, "tensor": config.tensor}
        used = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
        return tuple(used.values()), tuple(used)
    size = config.ranks_per_state_copy(world_size, ranks_per_node)
    if world_size % size:
        raise ConfigError(f"parallel.shard_size = {size}: must divide the number of ranks, {world_size}")
    return (world_size // size, size), ("replicate", "shard")
