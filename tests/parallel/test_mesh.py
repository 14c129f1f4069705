"""The mesh of each strategy."""

from pathlib import Path

import pytest
import torch.distributed as dist

from convoy.config.errors import ConfigError
from convoy.config.parallel import ParallelConfig
from convoy.parallel.mesh import build_mesh
from tests.ranks import on_ranks
from tests.training.sharded import alone


def _meshes(rank: int, path: str) -> list[tuple[tuple[str, ...], tuple[int, ...], list[int]]]:
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=4)
    configs = (
        ParallelConfig(),
        ParallelConfig(strategy="ddp"),
        ParallelConfig(strategy="hsdp", shard_size=2),
        ParallelConfig(strategy="hsdp"),
        ParallelConfig(strategy="hsdp", shard_size=1),
    )
    meshes = [build_mesh(config, "cpu", 4, 4) for config in configs]
    return [(mesh.mesh_dim_names or (), tuple(mesh.shape), mesh["shard"].mesh.tolist()) for mesh in meshes]


def test_neighbours_share_a_sharding_group(tmp_path: Path) -> None:
    names = ("replicate", "shard")
    for rank, found in enumerate(on_ranks(4, _meshes, str(tmp_path / "store"))):
        pair = [0, 1] if rank < 2 else [2, 3]
        assert found == [
            (("shard",), (4,), [0, 1, 2, 3]),
            (names, (4, 1), [rank]),
            (names, (2, 2), pair),
            (names, (1, 4), [0, 1, 2, 3]),
            (names, (4, 1), [rank]),
        ]


@alone
@pytest.mark.parametrize(("size", "ranks_per_node", "named"), [(3, 4, 3), (None, 3, 3), (8, 4, 8)])
def test_a_group_that_does_not_divide_the_ranks_is_refused(size: int | None, ranks_per_node: int, named: int) -> None:
    with pytest.raises(ConfigError, match=f"parallel.shard_size = {named}: must divide the number of ranks, 4"):
        build_mesh(ParallelConfig(strategy="hsdp", shard_size=size), "cpu", 4, ranks_per_node)
