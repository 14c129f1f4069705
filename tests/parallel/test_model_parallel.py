"""The mesh of each strategy; how a transformer is cut over ranks and over stages, and what cannot be."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.distributed.tensor import DTensor

from convoy.checkpoint.state.layout import local_tensor
from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import World, check_ranks
from convoy.model.families import block_of
from convoy.model.init import initialise_weights
from convoy.model.transformer import Transformer
from convoy.parallel.mesh import build_mesh, data_rank_and_size
from convoy.parallel.pipeline import Pipeline, stage_blocks
from convoy.training.process_groups import is_lost_peer
from tests.ranks import in_a_group
from tests.training.job import LLAMA, tiny
from tests.training.sharded import alone, sharded_model

SHAPE = LLAMA | {"n_heads": 4, "n_kv_heads": 2, "d_ff": 72}
STAGES = SHAPE | {"n_layers": 3}


def test_each_rank_has_whole_heads_and_the_keys_that_its_queries_need() -> None:
    qkv = block_of(TransformerConfig(d_model=16, n_heads=8, n_kv_heads=4)).attention[0]
    assert qkv.row_order(2) == ((0, 8), (16, 4), (24, 4), (8, 8), (20, 4), (28, 4))
    assert qkv.row_order(1) == ((0, 16), (16, 8), (24, 8))


def cut(rank: int) -> tuple[tuple[int, int], list[int], dict[str, tuple[int, ...]]]:
    config = tiny(model=SHAPE, parallel={"tensor": 2})
    mesh = build_mesh(config.parallel, "cpu", 4, 2)
    shapes = {name: tuple(local_tensor(p).shape) for name, p in sharded_model(config).named_parameters()}
    return data_rank_and_size(mesh), mesh["tensor"].mesh.tolist(), shapes


def test_neighbours_share_products_and_the_others_shard() -> None:
    found = in_a_group(4, cut)
    assert [place for place, _, _ in found] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert [ranks for _, ranks, _ in found] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    for _, _, shapes in found:
        assert shapes["blocks.0.attention.qkv.weight"] == (96 // 4, 48)
        assert shapes["blocks.0.attention.out.weight"] == (48 // 2, 48 // 2)
        assert shapes["blocks.0.mlp.down.weight"] == (48 // 2, 72 // 2)
        assert shapes["blocks.0.mlp.norm.weight"] == (48 // 2,)
        assert shapes["embed.token.weight"][1] == 48


def computed(rank: int, length: int) -> tuple[torch.Tensor, float, torch.Tensor]:
    """Logits, this rank's part of the loss, and the gradient of a norm."""
    model = sharded_model(tiny(model=SHAPE, parallel={"tensor": 2}))
    with torch.no_grad():
        logits_bsv = model(TOKENS[:, :length]).clone()
    loss = model(TOKENS[:, :length], TARGETS[:, :length])
    loss.backward()
    grad = model.get_parameter("blocks.0.attention.norm.weight").grad
    assert isinstance(grad, DTensor)
    return logits_bsv, float(loss), grad.full_tensor()


TOKENS, TARGETS = torch.arange(33).reshape(3, 11), torch.arange(1, 34).reshape(3, 11)


@pytest.mark.parametrize("length", [11, 1])
def test_logits_are_whole_on_each_rank_and_any_length_is_shared(length: int) -> None:
    config = tiny(model=SHAPE)
    assert isinstance(config.model, TransformerConfig)
    model = Transformer(config.model)
    initialise_weights(model, config.train.seed)
    expected = model(TOKENS[:, :length], TARGETS[:, :length])
    expected.backward()

    found = in_a_group(2, computed, length)

    assert sum(loss for _, loss, _ in found) == pytest.approx(float(expected.detach()), rel=1e-6)
    for logits_bsv, _, grad in found:
        assert torch.allclose(logits_bsv, model(TOKENS[:, :length]).detach(), atol=1e-5)
        own = model.get_parameter("blocks.0.attention.norm.weight").grad
        assert own is not None
        assert torch.allclose(grad, own, atol=1e-5)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": SHAPE, "parallel": {"tensor": 4}}, r"parallel.tensor = 4: must divide model.n_kv_heads, 2"),
    ({"model": SHAPE | {"d_ff": 71}, "parallel": {"tensor": 2}}, r"parallel.tensor = 2: must divide model.d_ff, 71"),
    ({"model": SHAPE, "parallel": {"tensor": 2, "strategy": "ddp"}}, r"tensor = 2: only with strategy: fsdp, not ddp"),
    ({"model": SHAPE, "parallel": {"tensor": 2, "strategy": "hsdp"}}, r"tensor = 2: only with strategy: fsdp"),
    ({"model": SHAPE, "parallel": {"tensor": 2}, "train": {"compile": True}}, r"must be 1 with train.compile = true"),
    ({"model": STAGES, "parallel": {"pipeline": 4}}, r"parallel.pipeline = 4: must be at most model.n_layers, 3"),
    ({"model": STAGES, "parallel": {"pipeline": 2, "strategy": "ddp"}}, r"pipeline = 2: only with strategy: fsdp"),
    ({"model": STAGES, "parallel": {"pipeline": 2}, "train": {"compile": True}}, r"must be 1 with train.compile"),
    (
        {"model": STAGES | {"tied_embeddings": True}, "parallel": {"pipeline": 2}},
        r"parallel.pipeline = 2: must be 1 with model.tied_embeddings = true",
    ),
    (
        {"model": STAGES, "parallel": {"pipeline": 2}, "evaluation": {"sample_tokens": 9}},
        r"parallel.pipeline = 2: must be 1 with evaluation.sample_tokens = 9, which may be 0",
    ),
    ({"model": STAGES | {"init_from": "/m"}, "parallel": {"pipeline": 2}}, r"must be 1 with model.init_from = /m"),
    (
        {"model": {"build": "a:b", "vocab_size": 257, "max_sequence_length": 32}, "parallel": {"tensor": 2}},
        r"parallel.tensor = 2: must be 1 with model.build = a:b",
    ),
]


@pytest.mark.parametrize(("sections", "told"), REFUSED)
def test_what_cannot_be_cut_is_refused(sections: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        tiny(**sections)


def test_a_group_that_does_not_fit_a_node_is_refused() -> None:
    config = tiny(model=SHAPE, parallel={"tensor": 2})
    with pytest.raises(ConfigError, match=r"parallel.tensor = 2: must divide the ranks of this host, 3"):
        check_ranks(config, World(3, 1))
    remote = config.model_copy(update={"cluster": config.cluster.model_copy(update={"backend": "kubernetes"})})
    with pytest.raises(ConfigError, match=r"parallel.tensor = 2: must divide the ranks of a node, 3"):
        check_ranks(remote, World(2, 3))
    with pytest.raises(ConfigError, match=r"parallel.tensor = 2: must divide the number of ranks, 3"):
        build_mesh(config.parallel, "cpu", 3, 3)
    with pytest.raises(ConfigError, match=r"train.global_batch = 8: .* ranks, 20 \(10 nodes × 2\), divided by 2"):
        check_ranks(config, World(10, 2))
    check_ranks(config, World(8, 2))  # 16 ranks, of which two share a sequence each


def test_stages_that_do_not_fit_the_ranks_or_the_batch_are_refused() -> None:
    config = tiny(model=STAGES, parallel={"pipeline": 2, "tensor": 2}, train={"micro_batch": 2})
    with pytest.raises(ConfigError, match=r"parallel.pipeline = 2: must divide the number of groups of 2 ranks, 6"):
        check_ranks(config, World(1, 6))
    with pytest.raises(ConfigError, match=r"parallel.pipeline = 2: must divide"):
        build_mesh(config.parallel, "cpu", 6, 6)
    told = r"train.micro_batch = 2: makes 1 of the 2 sequences of a step, and parallel.pipeline = 2 needs one micro"
    with pytest.raises(ConfigError, match=told):
        check_ranks(config, World(4, 4))
    check_ranks(config, World(1, 4))


@given(st.integers(1, 9), st.integers(0, 30))
def test_every_block_is_on_one_stage_and_no_stage_has_two_more_than_another(stages: int, more: int) -> None:
    found = [stage_blocks(stages + more, stages, stage) for stage in range(stages)]
    assert [block for blocks in found for block in blocks] == list(range(stages + more))
    lengths = [len(blocks) for blocks in found]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


def three_ways(rank: int) -> tuple[tuple[int, int], list[list[int]], set[str]]:
    config = tiny(model=STAGES, parallel={"tensor": 2, "pipeline": 2})
    mesh = build_mesh(config.parallel, "cpu", 8, 2)
    parts = [mesh[name].mesh.tolist() for name in ("pipeline", "shard", "tensor")]
    names = [name for name, _ in sharded_model(config, materialise=False).named_parameters()]
    own = {name.removesuffix(".weight").replace(".attention.qkv", "") for name in names}
    return data_rank_and_size(mesh), parts, own


def test_stages_are_far_apart_and_keep_the_names_of_what_they_have() -> None:
    found = in_a_group(8, three_ways)
    assert found[0][1] == [[0, 4], [0, 2], [0, 1]]
    assert [place for place, _, _ in found] == [(0, 2), (0, 2), (1, 2), (1, 2)] * 2
    for rank, (_, _, names) in enumerate(found):
        assert names & {"embed.token", "blocks.0", "blocks.1", "blocks.2", "head"} == (
            {"embed.token", "blocks.0", "blocks.1"} if rank < 4 else {"blocks.2", "head"}
        )


class TooMuch(Exception):
    """What a stage may raise."""


def fails(rank: int, where: str) -> tuple[str, str]:
    """The second stage fails, in a micro batch's way forward or back: what either of them raises, and why."""
    config = tiny(model=STAGES, parallel={"pipeline": 2})
    model: Any = sharded_model(config)
    pipeline = Pipeline(model, build_mesh(config.parallel, "cpu", 2, 2)["pipeline"], torch.float32)

    def fail(*_: Any) -> None:
        raise TooMuch("of it") from KeyError("it")

    if rank == 1:
        block = model.blocks[2]
        block.register_forward_hook(fail) if where == "forward" else block.register_full_backward_hook(fail)
    try:
        pipeline.train([(TOKENS, TARGETS, None)] * 2, 1.0, lambda _: None)
    except Exception as error:
        return "lost peer" if is_lost_peer(error) else repr(error), repr(error.__cause__)
    return "", ""


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_what_a_stage_raises_comes_through_as_it_is(where: str) -> None:
    found = in_a_group(2, fails, where)
    assert [told for told, _ in found] == ["lost peer", "TooMuch('of it')"]
    assert found[1][1] == "KeyError('it')"


def _meshes(rank: int) -> list[tuple[tuple[str, ...], tuple[int, ...], list[int]]]:
    configs = (
        ParallelConfig(),
        ParallelConfig(strategy="ddp"),
        ParallelConfig(strategy="hsdp", shard_size=2),
        ParallelConfig(strategy="hsdp"),
        ParallelConfig(strategy="hsdp", shard_size=1),
    )
    meshes = [build_mesh(config, "cpu", 4, 4) for config in configs]
    return [(mesh.mesh_dim_names or (), tuple(mesh.shape), mesh["shard"].mesh.tolist()) for mesh in meshes]


def test_neighbours_share_a_sharding_group() -> None:
    names = ("replicate", "shard")
    for rank, found in enumerate(in_a_group(4, _meshes)):
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
