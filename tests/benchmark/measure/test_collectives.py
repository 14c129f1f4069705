"""Collectives by themselves, on two ranks: what is timed is what training does, and how far a sweep goes."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from convoy.benchmark.measure import collectives
from convoy.benchmark.measure.collectives import MIB, block_parameters, operation_of, sizes_of, sweep
from convoy.benchmark.results.collectives import OPERATIONS
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.gang.task import Place
from convoy.model.transformer import Transformer
from convoy.parallel.mesh import build_mesh
from convoy.training.process_groups import Ranks
from tests.ranks import on_ranks

FP32 = RunConfig.model_validate({"train": {"param_dtype": "fp32"}})


def two(rank: int, folder: str) -> Ranks:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    own = {"rank": rank, "host_rank": rank, "local_rank": rank, "node": 0, "nodes": 1}
    place = Place(**own, nproc_per_node=2, host_ranks=2, threads=1)
    group = dist.group.WORLD
    return Ranks(place, torch.device("cpu"), build_mesh(ParallelConfig(), "cpu", 2, 2), group, group)


def swept(rank: int, folder: str, size_seconds: float) -> list[tuple[str, int, int, float]]:
    ranks = two(rank, folder)
    collectives.SIZE_SECONDS = size_seconds
    found = sweep(ranks, [4096, 8191, MIB, 2 * MIB], FP32)
    return [(each.operation, each.bytes, each.seconds.n, each.seconds.estimate) for each in found]


def test_every_operation_is_timed_on_every_size_alike_on_all_ranks(tmp_path: Path) -> None:
    first, second = on_ranks(2, swept, str(tmp_path), 1e6)
    assert first == second
    assert [told[:3] for told in first] == [
        (operation, size, 7)
        for size in (4096, 8192, MIB, 2 * MIB)  # two equal parts of whole numbers
        for operation in ("all_gather", "reduce_scatter", "all_reduce")
    ]
    assert all(seconds > 0 for *_, seconds in first)


def test_a_sweep_ends_before_a_size_that_takes_too_long(tmp_path: Path) -> None:
    for found in on_ranks(2, swept, str(tmp_path), 0.0):
        assert {size for _, size, _, _ in found} == {4096, 8192, MIB}


def results(rank: int, folder: str) -> dict[str, tuple[list[int], int]]:
    """What is left of whole numbers after each operation, and its bytes."""
    ranks, found = two(rank, folder), dict[str, tuple[list[int], int]]()
    for name in OPERATIONS:
        exchange = operation_of(name, 16, torch.float32, ranks)
        exchange.whole.copy_(torch.arange(4) + 10 * rank)
        exchange.part.fill_(rank + 1)
        exchange.call()
        given = exchange.part if name == "reduce_scatter" else exchange.whole
        found[name] = (given.int().tolist(), exchange.whole.nbytes)
    return found


def test_what_is_timed_is_the_operation(tmp_path: Path) -> None:
    for rank, found in enumerate(on_ranks(2, results, str(tmp_path))):
        sums = [10, 12, 14, 16]
        assert found == {
            "all_gather": ([1, 1, 2, 2], 16),
            "reduce_scatter": (sums[2 * rank : 2 * rank + 2], 16),
            "all_reduce": (sums, 16),
        }


@pytest.mark.parametrize("shape", [{}, {"mlp": "swiglu", "bias": False, "n_kv_heads": 1, "tied_embeddings": False}])
def test_a_block_is_gathered_and_reduced_in_the_types_of_training(shape: dict[str, Any]) -> None:
    model = TransformerConfig.model_validate({"n_layers": 1, **shape})
    run = RunConfig.model_validate({"model": {"n_layers": 1, **shape}, "train": {"param_dtype": "bf16"}})
    with torch.device("meta"):
        block = sum(p.numel() for p in Transformer(model).blocks[0].parameters())
    assert block_parameters(model) == block
    assert {2 * block, 4 * block, MIB, 256 * MIB} <= set(sizes_of(run))
