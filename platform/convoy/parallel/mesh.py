"""The ranks as a mesh."""

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from convoy.config.errors import ConfigError
from convoy.config.parallel import ParallelConfig


def build_mesh(config: ParallelConfig, device_type: str, world_size: int, ranks_per_node: int) -> DeviceMesh:
    """A mesh over all ranks: `("shard",)` for fsdp, `("replicate", "shard")` for hsdp.

    Raises ConfigError if the sharding groups do not divide the world.
    """
    if config.strategy == "fsdp":
        return init_device_mesh(device_type, (world_size,), mesh_dim_names=("shard",))
    size = config.shard_size or ranks_per_node
    if world_size % size:
        raise ConfigError(f"parallel.shard_size = {size}: must divide the number of ranks, {world_size}")
    return init_device_mesh(device_type, (world_size // size, size), mesh_dim_names=("replicate", "shard"))
