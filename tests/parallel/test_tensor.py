"""How a transformer is cut over ranks that share each product, and what cannot be."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from pydantic import ValidationError

from convoy.checkpoint.plan import local_tensor
from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.launch.support import World, check_ranks
from convoy.model.transformer import head_rows
from convoy.parallel.mesh import build_mesh, data_place
from tests.ranks import on_ranks
from tests.training.job import LLAMA, tiny
from tests.training.sharded import sharded_model

SHAPE = LLAMA | {"n_heads": 4, "n_kv_heads": 2, "d_ff": 72}


def test_each_rank_has_whole_heads_and_the_keys_that_its_queries_need() -> None:
    config = TransformerConfig(d_model=16, n_heads=8, n_kv_heads=4)
    assert head_rows(config, 2) == ((0, 8), (16, 4), (24, 4), (8, 8), (20, 4), (28, 4))
    assert head_rows(config, 1) == ((0, 16), (16, 8), (24, 8))


def cut(rank: int, path: str) -> tuple[tuple[int, int], list[int], dict[str, tuple[int, ...]]]:
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=4)
    config = tiny(model=SHAPE, parallel={"tensor": 2})
    mesh = build_mesh(config.parallel, "cpu", 4, 2)
    shapes = {name: tuple(local_tensor(p).shape) for name, p in sharded_model(config).named_parameters()}
    return data_place(mesh), mesh["tensor"].mesh.tolist(), shapes


def test_neighbours_share_products_and_the_others_shard(tmp_path: Path) -> None:
    found = on_ranks(4, cut, str(tmp_path / "store"))
    assert [place for place, _, _ in found] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert [ranks for _, ranks, _ in found] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    for _, _, shapes in found:
        assert shapes["blocks.0.attention.qkv.weight"] == (96 // 4, 48)
        assert shapes["blocks.0.attention.out.weight"] == (48 // 2, 48 // 2)
        assert shapes["blocks.0.mlp.down.weight"] == (48 // 2, 72 // 2)
        assert shapes["blocks.0.mlp.norm.weight"] == (48 // 2,)
        assert shapes["embed.token.weight"][1] == 48


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": SHAPE, "parallel": {"tensor": 4}}, r"parallel.tensor = 4: must divide model.n_kv_heads, 2"),
    ({"model": SHAPE | {"d_ff": 71}, "parallel": {"tensor": 2}}, r"parallel.tensor = 2: must divide model.d_ff, 71"),
    ({"model": SHAPE, "parallel": {"tensor": 2, "strategy": "ddp"}}, r"tensor = 2: only with strategy: fsdp, not ddp"),
    ({"model": SHAPE, "parallel": {"tensor": 2, "strategy": "hsdp"}}, r"tensor = 2: only with strategy: fsdp"),
    ({"model": SHAPE, "parallel": {"tensor": 2}, "train": {"compile": True}}, r"must be 1 with train.compile = true"),
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
    told = "parallel.tensor = 2: must divide the ranks of a node, 3"
    with pytest.raises(ConfigError, match=told):
        check_ranks(config, World(2, 3))
    with pytest.raises(ConfigError, match=told):
        build_mesh(config.parallel, "cpu", 6, 3)
    with pytest.raises(ConfigError, match=r"train.global_batch = 8: .* ranks, 20 \(10 nodes × 2\), divided by 2"):
        check_ranks(config, World(10, 2))
    check_ranks(config, World(8, 2))  # 16 ranks, of which two share a sequence each
