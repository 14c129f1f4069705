"""Collectives by themselves, on two ranks: what is timed is what training does, and how far a sweep goes."""

from typing import Any, NamedTuple

import pytest
import torch

from convoy.benchmark.measure import collectives
from convoy.benchmark.measure.collectives import MIB, block_parameters, make_exchange, sweep, swept_sizes
from convoy.benchmark.results.collectives import OPERATIONS
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.model.transformer import Transformer
from convoy.training.process_groups import Ranks
from tests.benchmark.benches import one_of_two
from tests.ranks import in_a_group

FP32 = RunConfig.model_validate({"train": {"param_dtype": "fp32"}})


class RankSweeps(NamedTuple):
    """What one rank measured."""

    swept: list[tuple[str, int, int, float]]
    hurried: list[tuple[str, int, int, float]]
    """A sweep in which every size takes too long."""
    checked: dict[str, tuple[int, int]]


def sweeps_of_rank(rank: int) -> RankSweeps:
    ranks = one_of_two(rank)
    return RankSweeps(swept(ranks, 1e6), swept(ranks, 0.0), checked(ranks))


def swept(ranks: Ranks, size_seconds: float) -> list[tuple[str, int, int, float]]:
    collectives.SIZE_SECONDS = size_seconds
    found = sweep(ranks, [4096, 8191, MIB, 2 * MIB], FP32)
    return [(each.operation, each.bytes, each.seconds.n, each.seconds.estimate) for each in found]


@pytest.fixture(scope="module")
def gang() -> list[RankSweeps]:
    return in_a_group(2, sweeps_of_rank)


def test_every_operation_is_timed_on_every_size_alike_on_all_ranks(gang: list[RankSweeps]) -> None:
    assert gang[0].swept == gang[1].swept
    assert [told[:3] for told in gang[0].swept] == [
        (operation, size, 7)
        for size in (4096, 8192, MIB, 2 * MIB)  # two equal parts of whole numbers
        for operation in ("all_gather", "reduce_scatter", "all_reduce")
    ]
    assert all(seconds > 0 for *_, seconds in gang[0].swept)


def test_a_sweep_ends_before_a_size_that_takes_too_long(gang: list[RankSweeps]) -> None:
    for rank in gang:
        assert {size for _, size, _, _ in rank.hurried} == {4096, 8192, MIB}


def checked(ranks: Ranks) -> dict[str, tuple[int, int]]:
    """Wrong elements after each operation, and its bytes."""
    found = dict[str, tuple[int, int]]()
    for name in OPERATIONS:
        exchange = make_exchange(name, 15, FP32, ranks)
        found[name] = (exchange.check(), exchange.problem.total * 4)
    return found


def test_what_is_timed_is_the_operation(gang: list[RankSweeps]) -> None:
    for found in gang:
        assert found.checked == {"all_gather": (0, 16), "reduce_scatter": (0, 16), "all_reduce": (0, 16)}


@pytest.mark.parametrize("shape", [{}, {"mlp": "swiglu", "bias": False, "n_kv_heads": 1, "tied_embeddings": False}])
def test_a_block_is_gathered_and_reduced_in_the_types_of_training(shape: dict[str, Any]) -> None:
    model = TransformerConfig.model_validate({"n_layers": 1, **shape})
    run = RunConfig.model_validate({"model": {"n_layers": 1, **shape}, "train": {"param_dtype": "bf16"}})
    with torch.device("meta"):
        block = sum(p.numel() for p in Transformer(model).blocks[0].parameters())
    assert block_parameters(model) == block
    assert {2 * block, 4 * block, MIB, 256 * MIB} <= set(swept_sizes(run))
