"""A model family is added by describing its block once: counts, planner, parallelism, files and probe follow."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import FlopCounterMode

from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.gang.task import Assignment
from convoy.model import families
from convoy.model.block import Block, Matrix, Norm
from convoy.model.build import build_model
from convoy.model.counts import forward_flops_per_token, parameter_count
from convoy.model.dense.hugging_face import LLAMA
from convoy.model.dense.modules import rotate
from convoy.model.families import BlockFamily
from convoy.model.hf import read_hf_weights, write_hf
from convoy.model.hf_config import read_hf_config
from convoy.model.hf_format import FixedKey
from convoy.model.init import initialise_weights, load_full_weights, parameter_names
from convoy.model.transformer import Transformer, make_norm
from convoy.planner.memory.rank import rank_memory
from convoy.planner.step.communication import busiest_collectives
from convoy.planner.step.work import Kernels, pass_work
from convoy.planner.workload import Workload
from convoy.training.measure.machine_probe import _RankWorkload, probe_machine
from convoy.training.process_groups import connect_ranks
from tests.planner.step.test_communication import total, workload
from tests.planner.tracked import counted, tracked
from tests.ranks import in_a_group
from tests.training.job import Job, tiny
from tests.training.sharded import sharded_model


class ParallelConfig(TransformerConfig):
    """Attention and MLP read one norm, and the MLP has no gate."""


class ParallelBlock(nn.Module):
    def __init__(self, config: ParallelConfig, fused_attention: bool) -> None:
        super().__init__()
        self.head_width, self.rope_theta = config.head_width, config.rope_theta
        self.norm = make_norm(config)
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.out = nn.Linear(config.d_model, config.d_model, bias=False)
        self.up = nn.Linear(config.d_model, config.ff_width, bias=False)
        self.down = nn.Linear(config.ff_width, config.d_model, bias=False)

    def forward(self, hidden_bsd: Tensor, positions: Tensor, mask_b1ss: Tensor | None) -> Tensor:
        normed_bsd = self.norm(hidden_bsd)
        heads_bsnk = self.qkv(normed_bsd).unflatten(-1, (-1, self.head_width))
        query, key, value = heads_bsnk.chunk(3, dim=2)
        query, key = (rotate(x, positions, self.rope_theta).transpose(1, 2) for x in (query, key))
        mixed = F.scaled_dot_product_attention(
            query, key, value.transpose(1, 2), attn_mask=mask_b1ss, is_causal=mask_b1ss is None
        )
        hidden_bsd = hidden_bsd + self.out(mixed.transpose(1, 2).flatten(2))
        result: Tensor = hidden_bsd + self.down(F.relu(self.up(normed_bsd)).square())
        return result


def parallel_block(config: ParallelConfig) -> Block:
    width, inner = config.d_model, config.ff_width
    return Block(
        norms=(Norm("norm", width, config.vectors_per_norm),),
        attention=(
            Matrix("qkv", 3 * width, width, "rows", bias=True, parts=(width, width, width)),
            Matrix("out", width, width, "columns"),
        ),
        mlp=(Matrix("up", inner, width, "rows"), Matrix("down", width, inner, "columns")),
        heads=config.n_heads,
        kv_heads=config.n_heads,
        head_width=config.head_width,
        rotary=True,
    )


FORMAT = replace(
    LLAMA,
    model_type="parallel",
    architecture="ParallelForCausalLM",
    form={"norm": "rmsnorm", "positions": "rotary", "bias": False},
    fixed={**LLAMA.fixed, "hidden_act": FixedKey(("relu2",)), "attention_bias": FixedKey((True,))},
    extra_keys=lambda _: {"hidden_act": "relu2", "attention_bias": True},
    block={
        "norm": ("input_layernorm",),
        "qkv": ("attn.q", "attn.k", "attn.v"),
        "out": ("attn.o",),
        "up": ("mlp.up",),
        "down": ("mlp.down",),
    },
)
PARALLEL = BlockFamily("parallel", ParallelConfig, parallel_block, ParallelBlock, (FORMAT,))
SHAPE: dict[str, Any] = {
    "vocab_size": 500,
    "n_layers": 3,
    "d_model": 64,
    "n_heads": 4,
    "n_kv_heads": 4,
    "d_ff": 160,
    "max_sequence_length": 32,
    "norm": "rmsnorm",
    "positions": "rotary",
    "bias": False,
    "tied_embeddings": False,
}
CONFIG = ParallelConfig(**SHAPE)


@pytest.fixture(autouse=True)
def _parallel_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, PARALLEL))


def job(**keys: Any) -> Workload:
    return replace(workload(SHAPE, param_dtype="fp32", **keys), model=CONFIG)


def ready(seed: int = 0) -> Transformer:
    model = build_model(CONFIG)
    assert isinstance(model, Transformer)
    model.to_empty(device="cpu")
    initialise_weights(model, seed)
    return model


def test_counts_are_those_of_the_module() -> None:
    model = ready()
    block = sum(p.numel() for p in model.blocks[0].parameters())

    assert parameter_count(CONFIG) == sum(p.numel() for p in model.parameters())
    assert block == 64 + 3 * 64 * 65 + 64 * 64 + 2 * 64 * 160
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        Transformer(CONFIG)(torch.zeros(1, 32, dtype=torch.int64))
    norms = 2 * (3 * 64 + 64 + 3 * 3 * 64)  # and biases, which FLOP counters leave out
    assert counter.get_total_flops() == 32 * (forward_flops_per_token(CONFIG, 32) - norms)


def test_projections_into_the_residual_stream_are_initialised_smaller() -> None:
    block = ready().blocks[0]

    assert block.get_parameter("up.weight").std().item() == pytest.approx(0.02, rel=0.05)
    assert block.get_parameter("down.weight").std().item() == pytest.approx(0.02 / math.sqrt(6), rel=0.05)


@pytest.mark.sampled(3)
@pytest.mark.processes
@pytest.mark.parametrize("keys", [{}, {"wrap": "linear"}, {"tensor": 4, "global_batch": 8}])
def test_the_planner_weighs_and_counts_what_the_real_code_takes_and_sends(keys: dict[str, Any]) -> None:
    planned = job(**keys)

    assert total(busiest_collectives(planned)) == counted(planned)
    assert rank_memory(planned).peak_bytes == pytest.approx(tracked(planned)["Total"], rel=0.05)


def test_the_planner_counts_the_operations_of_its_matrices() -> None:
    planned = pass_work(job(), Kernels())

    assert planned.matmul_flops == 2 * job().tokens_per_pass * (4 * 64 * 64 + 2 * 64 * 160)


def logits_and_gradient(rank: int) -> tuple[Tensor, Tensor]:
    config = tiny(model=SHAPE, parallel={"tensor": 2}).model_copy(update={"model": CONFIG})
    model = sharded_model(config)
    with torch.no_grad():
        logits = model(TOKENS).clone()
    model(TOKENS, TOKENS).backward()
    gradient = model.get_parameter("blocks.1.norm.weight").grad
    assert isinstance(gradient, DTensor)
    return logits, gradient.full_tensor()


TOKENS = torch.arange(24).reshape(2, 12)


def test_ranks_share_its_products_and_compute_the_same() -> None:
    model = ready(tiny().train.seed)
    model(TOKENS, TOKENS).backward()

    for logits, gradient in in_a_group(2, logits_and_gradient):
        assert torch.allclose(logits, model(TOKENS), atol=1e-5)
        expected = model.get_parameter("blocks.1.norm.weight").grad
        assert expected is not None
        assert torch.allclose(gradient, expected, atol=1e-4)  # of both ranks, which have the same batch


def test_a_hugging_face_folder_holds_its_weights(tmp_path: Path) -> None:
    model = ready()
    write_hf(tmp_path, CONFIG, dict(parameter_names(model)))

    assert read_hf_config(tmp_path).model_dump(exclude={"name"}) == CONFIG.model_dump(exclude={"name"})
    assert "model.layers.2.attn.k.bias" in load_file(tmp_path / "model.safetensors")
    other = ready(seed=1)
    load_full_weights(other, read_hf_weights(tmp_path, CONFIG))
    assert torch.equal(other(TOKENS), model(TOKENS))


def probed_sizes(rank: int, assignments: list[Assignment], config: RunConfig) -> tuple[int, ...]:
    ranks = connect_ranks(assignments[rank])
    sizes = _RankWorkload(config, CONFIG, ranks)
    measured = probe_machine(config, ranks, 0.02)
    assert measured is not None
    assert measured.matmul_flops > 0
    return sizes.inner, sizes.heads, sizes.head_width, sizes.block


def test_the_probe_measures_its_sizes(tmp_path: Path) -> None:
    config = tiny().model_copy(update={"model": CONFIG})

    ((*sizes, block),) = Job(str(tmp_path), tiny()).on_gang(1, probed_sizes, config, config=tiny())
    assert sizes == [160, 4, 16]
    assert block == sum(p.numel() for p in ready().blocks[0].parameters())


def test_a_configuration_of_no_family_is_refused_with_the_choices() -> None:
    class Other(TransformerConfig):
        pass

    with pytest.raises(LookupError, match=r"Other is .*must be one of TransformerConfig, ParallelConfig"):
        parameter_count(Other())
