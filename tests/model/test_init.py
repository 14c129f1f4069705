import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.model.init import initialise_weights, load_full_weights, parameter_names
from convoy.model.transformer import Transformer
from tests.model.models import FORMS, GPT2, LLAMA, ready, sharded
from tests.ranks import in_a_group

every_form = pytest.mark.parametrize("config", FORMS.values(), ids=FORMS)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameter_names(model)}


def full_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().full_tensor() for name, parameter in parameter_names(model)}


def assert_identical(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def weights_on_rank(rank: int, config: TransformerConfig) -> dict[str, Tensor]:
    model = sharded(config, seed=3)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    return full_weights(model)


@pytest.mark.sampled(3)
@every_form
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_weights_are_equal_bit_for_bit_at_any_world_size(config: TransformerConfig, world_size: int) -> None:
    alone = weights(ready(config, seed=3))
    for everything in in_a_group(world_size, weights_on_rank, config):
        assert_identical(everything, alone)


def hybrid_weights(rank: int) -> dict[str, Tensor]:
    with torch.device("meta"):
        model = Transformer(LLAMA)
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    model.to_empty(device="cpu")
    initialise_weights(model, 3)
    return full_weights(model)


def test_hybrid_sharding_starts_from_the_same_weights() -> None:
    alone = weights(ready(LLAMA, seed=3))
    for everything in in_a_group(4, hybrid_weights):
        assert_identical(everything, alone)


def test_another_seed_and_another_name_give_other_values() -> None:
    first, second = weights(ready(GPT2, seed=0)), weights(ready(GPT2, seed=1))
    assert not torch.equal(first["embed.token.weight"], second["embed.token.weight"])
    assert not torch.equal(first["blocks.0.attention.qkv.weight"], first["blocks.1.attention.qkv.weight"])


def test_values_do_not_depend_on_the_other_parameters() -> None:
    deeper = weights(ready(LLAMA.model_copy(update={"n_layers": 3}), seed=0))
    shallow = weights(ready(LLAMA, seed=0))
    assert torch.equal(deeper["blocks.1.attention.qkv.weight"], shallow["blocks.1.attention.qkv.weight"])


@pytest.mark.processes
def test_activation_checkpointing_and_compilation_do_not_change_names_or_values() -> None:
    with torch.device("meta"):
        model = Transformer(GPT2)
    model.blocks[0] = checkpoint_wrapper(model.blocks[0])
    model.blocks[1] = torch.compile(model.blocks[1])
    model.to_empty(device="cpu")
    initialise_weights(model, 0)
    assert any("_checkpoint_wrapped_module" in name for name, _ in model.named_parameters())
    assert any("_orig_mod" in name for name, _ in model.named_parameters())
    assert_identical(weights(model), weights(ready(GPT2)))


def test_standard_deviations_are_those_of_gpt2() -> None:
    wide = GPT2.model_copy(update={"d_model": 128, "n_layers": 8, "init_std": 0.02})
    initial = weights(ready(wide))
    for name in (
        "embed.token.weight",
        "embed.position.weight",
        "blocks.3.attention.qkv.weight",
        "blocks.3.mlp.up.weight",
    ):
        assert float(initial[name].std()) == pytest.approx(0.02, rel=0.05)
    for name in ("blocks.3.attention.out.weight", "blocks.3.mlp.down.weight"):
        assert float(initial[name].std()) == pytest.approx(0.02 / math.sqrt(16), rel=0.05)
    assert all(bool((initial[name] == 1).all()) for name in initial if name.endswith("norm.weight"))
    assert all(not initial[name].any() for name in initial if name.endswith("bias"))


def test_an_untied_head_is_initialised_too() -> None:
    head = weights(ready(LLAMA))["head.weight"]
    assert float(head.std()) == pytest.approx(LLAMA.init_std, rel=0.1)


def stream(named: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    yield from named.items()


def loaded_on_rank(rank: int, named: dict[str, Tensor]) -> dict[str, Tensor]:
    model = sharded(GPT2, seed=8)
    load_full_weights(model, stream(named))
    return full_weights(model)


@pytest.mark.parametrize("world_size", [1, 3])
def test_full_weights_reach_every_shard(world_size: int) -> None:
    source = weights(ready(GPT2, seed=3))
    for everything in in_a_group(world_size, loaded_on_rank, source):
        assert_identical(everything, source)


def test_full_weights_are_converted_to_the_parameters_dtype() -> None:
    source = {name: tensor.bfloat16() for name, tensor in weights(ready(GPT2, seed=3)).items()}
    model = ready(GPT2)
    load_full_weights(model, stream(source))
    assert_identical(weights(model), {name: tensor.float() for name, tensor in source.items()})


@pytest.mark.parametrize(
    ("name", "tensor", "told"),
    [
        ("blocks.1.mlp.up.bias", None, r"no tensor for blocks\.1\.mlp\.up\.bias \(1 missing\)"),
        ("blocks.7.mlp.up.bias", torch.zeros(1), r"blocks\.7\.mlp\.up\.bias is not a parameter"),
        ("head.norm.bias", torch.zeros(5), r"head\.norm\.bias has shape \(5,\): must be \(32,\)"),
    ],
)
def test_a_tensor_that_is_missing_unknown_or_of_another_shape_is_named(
    name: str, tensor: Tensor | None, told: str
) -> None:
    others = {other: value for other, value in weights(ready(GPT2)).items() if other != name}
    with pytest.raises(ConfigError, match=told):
        load_full_weights(ready(GPT2), stream(others if tensor is None else {**others, name: tensor}))


def test_values_are_drawn_where_one_says_and_kept_where_the_model_is() -> None:
    """A device without numbers stands for another generator: nothing is drawn on the model's own device."""
    with pytest.raises(RuntimeError, match=r"(?i)meta"):
        initialise_weights(ready(GPT2, seed=3), 3, torch.device("meta"))
