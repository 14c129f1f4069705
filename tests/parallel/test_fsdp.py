"""What is gathered together, that nothing is left out, and that recomputation changes no result."""

from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from convoy.checkpoint.state.layout import local_tensor
from convoy.config.errors import ConfigError
from convoy.config.train import TrainConfig
from convoy.parallel.activation_checkpointing import apply_activation_checkpointing
from convoy.parallel.fsdp import parallelize, wrap_and_compile_blocks
from convoy.parallel.mesh import build_mesh
from tests.model.models import GPT2, ready
from tests.ranks import in_a_group
from tests.training.job import GPT, LLAMA, tiny
from tests.training.sharded import alone, sharded_model


def groups(model: nn.Module) -> dict[str, int]:
    """Modules that gather parameters of their own, and how many."""
    wrapped = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    held = {name: {id(p) for p in model.get_submodule(name).parameters()} for name in wrapped}
    within = {name: [inner for inner in wrapped if inner != name and f"{inner}.".startswith(f"{name}.".lstrip("."))]
              for name in wrapped}  # fmt: skip
    return {name: len(held[name].difference(*(held[inner] for inner in within[name]))) for name in wrapped}


@alone
def test_a_tied_model_gathers_each_block_and_its_two_ends_together() -> None:
    assert groups(sharded_model(tiny(model=GPT))) == {"": 4, "blocks.0": 12, "blocks.1": 12}


@alone
def test_an_untied_model_gathers_its_ends_apart() -> None:
    found = groups(sharded_model(tiny(model=LLAMA)))
    assert found == {"": 0, "embed": 1, "blocks.0": 7, "blocks.1": 7, "head": 2}


@alone
@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_what_stays_gathered_is_one_unit_on_cpus(model: dict[str, Any]) -> None:
    whole = sharded_model(tiny(model=model, parallel={"reshard_after_forward": False}))
    assert groups(whole) == {"": len(list(whole.parameters()))}


def test_a_block_that_is_a_layer_of_torch_s_own_is_not_compiled() -> None:
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))])
    list(wrap_and_compile_blocks(model, TrainConfig(compile=True)))
    assert [block._compiled_call_impl is not None for block in model.blocks] == [False, True]


@alone
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_by_linear_gathers_each_matrix_apart(recompute: str) -> None:
    train = {"activation_checkpointing": recompute}
    model = sharded_model(tiny(model=LLAMA, parallel={"wrap": "linear"}, train=train))
    found = {name.replace("._checkpoint_wrapped_module", ""): count for name, count in groups(model).items()}
    assert {name: count for name, count in found.items() if name.startswith("blocks.0")} == {
        "blocks.0": 2,  # the norms
        "blocks.0.attention.qkv": 1, "blocks.0.attention.out": 1,
        "blocks.0.mlp.gate": 1, "blocks.0.mlp.up": 1, "blocks.0.mlp.down": 1,
    }  # fmt: skip


class MultiHead(nn.Module):
    """A block that torch's own attention is a part of."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Sequential(nn.Linear(8, 8)))

    def forward(self, x_bsd: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.mlp(x_bsd + self.attention(x_bsd, x_bsd, x_bsd, need_weights=False)[0])
        return result


class Stack(nn.Module):
    """Of blocks."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x_bsd: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x_bsd = block(x_bsd)
        return x_bsd


@alone
def test_by_linear_keeps_together_what_is_used_without_a_call() -> None:
    config = tiny(parallel={"wrap": "linear"})
    torch.manual_seed(0)
    model: Any = Stack([MultiHead()])
    x_bsd = torch.randn(2, 3, 8)
    expected = model(x_bsd)

    parallelize(model, build_mesh(config.parallel, "cpu", 1, 1), config.parallel, config.train)

    assert {name: count for name, count in groups(model).items() if count} == {
        "blocks.0.attention": 4, "blocks.0.mlp.0": 2, "blocks.0.mlp.2.0": 2,
    }  # fmt: skip
    assert torch.allclose(model(x_bsd), expected)


@alone
def test_without_a_gpu_there_is_nothing_to_offload() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.cpu_offload = true: there is no GPU"):
        sharded_model(tiny(parallel={"cpu_offload": True}))


@alone
@pytest.mark.parametrize("reshard", [True, False])
def test_only_the_head_is_always_kept_for_backward(reshard: bool) -> None:
    """By layers, since blocks that stay would be one unit with all else."""
    keys = {"reshard_after_forward": reshard, "wrap": "linear"}
    model = sharded_model(tiny(model=LLAMA, parallel=keys))
    kept = {}
    for name in ("embed", "blocks.0", "blocks.1", "head"):
        module = model.get_submodule(name)
        assert isinstance(module, FSDPModule)
        (group,) = module._get_fsdp_state()._fsdp_param_groups
        kept[name] = not group._reshard_after_forward
    assert kept == {"embed": not reshard, "blocks.0": not reshard, "blocks.1": not reshard, "head": True}


@alone
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_every_parameter_is_sharded_in_fp32(recompute: str) -> None:
    model = sharded_model(tiny(train={"activation_checkpointing": recompute, "param_dtype": "bf16"}))
    parameters = dict(model.named_parameters())
    assert all(isinstance(p, DTensor) and p.dtype == torch.float32 for p in parameters.values())
    assert any("_checkpoint_wrapped_module" in name for name in parameters) == (recompute != "none")


def held(rank: int, strategy: str) -> float:
    """Share of the model that this rank holds."""
    parameters = list(sharded_model(tiny(parallel={"strategy": strategy})).parameters())
    return sum(local_tensor(p).numel() for p in parameters) / sum(p.numel() for p in parameters)


def test_with_ddp_every_rank_holds_the_whole_model() -> None:
    assert in_a_group(2, held, "ddp") == [1.0, 1.0]
    assert sum(in_a_group(2, held, "fsdp")) == pytest.approx(1.0)


class Shared(nn.Module):
    """Lists of blocks in lists, and one block in two places."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.Linear(4, 4)
        self.lists = nn.ModuleList([nn.ModuleList([block, nn.Linear(4, 4)]), block])

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self.lists)

    def forward(self, x_bd: torch.Tensor) -> torch.Tensor:
        pair: Any = self.lists[0]
        result: torch.Tensor = self.lists[1](pair[1](pair[0](x_bd)))
        return result


@alone
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_nested_and_shared_blocks_are_each_wrapped_once(recompute: str) -> None:
    config = tiny(train={"activation_checkpointing": recompute})
    torch.manual_seed(0)
    model = Shared()
    x_bd = torch.randn(3, 4)
    expected = model(x_bd)

    parallelize(model, build_mesh(config.parallel, "cpu", 1, 1), config.parallel, config.train)

    outer: Any = model.lists[0]
    assert outer[0] is model.lists[1]
    assert not isinstance(outer, FSDPModule)
    assert sum(isinstance(module, FSDPModule) for module in model.modules()) == 3
    assert torch.allclose(model(x_bd), expected)


class HalfPositions(nn.Module):
    """Adds fp32 positions, which a bf16 block must not choke on."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(9, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8)])

    def forward(self, tokens_bs: torch.Tensor) -> torch.Tensor:
        positions_s1 = torch.arange(tokens_bs.shape[1]).float().unsqueeze(1)
        result: torch.Tensor = self.blocks[0](self.embed_tokens(tokens_bs) + positions_s1.sin())
        return result


@alone
def test_blocks_take_activations_of_any_type() -> None:
    config = tiny(train={"param_dtype": "bf16"})
    model = HalfPositions()
    parallelize(model, build_mesh(config.parallel, "cpu", 1, 1), config.parallel, config.train)

    assert model(torch.zeros(2, 3, dtype=torch.long)).dtype == torch.bfloat16


Mode = Literal["none", "selective", "full"]


class MatmulCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How often a matmul ran."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


def a_block() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    block = ready(GPT2.model_copy(update={"dropout": 0.3})).blocks[0]
    hidden_bsd = torch.randn(2, 5, GPT2.d_model, generator=torch.Generator().manual_seed(2))
    return block, hidden_bsd, torch.arange(5)


def gradients(mode: Mode) -> tuple[list[torch.Tensor], int]:
    """Gradients of a block, and the matmuls of its backward."""
    block, hidden_bsd, positions_s = a_block()
    torch.manual_seed(5)
    out_bsd = apply_activation_checkpointing(block, mode)(hidden_bsd.requires_grad_(), positions_s, None)
    with MatmulCount() as backward:
        out_bsd.square().sum().backward()
    return [p.grad for p in block.parameters() if p.grad is not None], backward.count


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_gradients_are_the_same_with_dropout(mode: Mode) -> None:
    expected, _ = gradients("none")
    found, _ = gradients(mode)
    assert len(found) == len(expected) == 12
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_full_runs_every_matmul_again_and_selective_every_second() -> None:
    plain, selective, full = (gradients(mode)[1] for mode in ("none", "selective", "full"))
    assert full - plain >= 3  # the last product's result is needed by nobody
    assert 0 < selective - plain < full - plain


def test_none_is_the_block_itself() -> None:
    block, _, _ = a_block()
    assert apply_activation_checkpointing(block, "none") is block
