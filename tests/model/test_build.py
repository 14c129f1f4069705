from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig
from convoy.model.build import CustomModel, build_model
from convoy.model.init import parameter_names
from convoy.model.loss import IGNORE
from convoy.model.transformer import Transformer
from tests.model.models import GPT2


def custom(build: str = "tests.model.user_module:build", vocab_size: int = 11, **args: Any) -> CustomModelConfig:
    return CustomModelConfig(build=build, args=args, vocab_size=vocab_size, max_sequence_length=16)


def built(chunk: int = 0, seed: int = 0) -> CustomModel:
    model = build_model(custom(), chunk, seed=seed)
    assert isinstance(model, CustomModel)
    return model


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens, targets = torch.randint(11, (2, 3, 16), generator=generator)
    targets[:, -2:] = IGNORE
    return tokens, targets


def test_a_transformer_is_built_on_meta_with_its_loss_chunk() -> None:
    model = build_model(GPT2, loss_chunk_tokens=7)
    assert isinstance(model, Transformer)
    assert model.loss_chunk_tokens == 7
    assert model.embed.token.weight.is_meta


def test_arguments_reach_the_builder_and_logits_are_the_module_s_own() -> None:
    model, (tokens, _) = build_model(custom(width=4)), batch()
    assert dict(parameter_names(model))["module.out.weight"].shape == (11, 4)
    assert torch.equal(model(tokens), model.module(tokens))


@pytest.mark.parametrize("chunk", [0, 1, 7, 1000])
def test_a_custom_modules_loss_and_gradients_are_the_plain_ones(chunk: int) -> None:
    model, (tokens, targets) = built(chunk), batch()
    loss = model(tokens, targets)
    expected = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected)
    parameters = list(model.parameters())
    torch.testing.assert_close(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters))


def test_a_custom_modules_loss_is_fp32_when_it_computes_in_bf16() -> None:
    model, (tokens, targets) = built(chunk=4), batch()
    exact = model(tokens, targets)
    rounded = model.bfloat16()(tokens, targets)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=2e-2, atol=0)


def test_a_custom_module_has_the_same_weights_on_every_rank_and_for_every_seed_its_own() -> None:
    torch.manual_seed(5)
    first = dict(parameter_names(built(seed=1)))
    torch.manual_seed(6)
    second, third = dict(parameter_names(built(seed=1))), dict(parameter_names(built(seed=2)))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["module.out.weight"], third["module.out.weight"])


def test_building_a_custom_module_leaves_the_callers_random_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    built()
    assert torch.equal(torch.rand(3), expected)


def test_the_blocks_of_a_custom_module_are_the_elements_of_its_outermost_lists() -> None:
    model = built()
    module: Any = model.module
    assert model.blocks == [*module.encoder, module.decoder["blocks"][0]]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (custom("no_such_package.module:build"), "no module named no_such_package on the Python path"),
        (custom("tests.model.no_such_file:build"), "no module named tests.model.no_such_file on the Python path"),
        (custom("tests.model.user_module:construct"), "no function construct in "),
        (custom("tests.model.user_module:build_nothing"), "returned NoneType: must be a torch.nn.Module"),
        (custom("tests.model.user_module:build_frozen"), "without a trainable parameter: at least one must have"),
        (
            custom("tests.model.user_module:build_mixed"),
            "parameters of several types (embed.weight in float32, out.weight in bfloat16): all trainable ones must be",
        ),
        (custom("tests.model.user_module:build_lazy"), "whose out.weight has no shape yet, as in nn.LazyLinear"),
        (custom("tests.model.user_module:build_on_meta"), "whose embed.weight is on the meta device"),
        (custom(depth=3), "model.args = {'depth': 3}: tests.model.user_module:build does not take them"),
    ],
)
def test_a_builder_that_does_not_build_is_one_clear_line(config: CustomModelConfig, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_model(config)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_logits_of_another_width_than_the_vocabulary_are_refused() -> None:
    model = build_model(custom(vocab_size=12))
    with pytest.raises(ConfigError, match=r"logits of shape \(3, 16, 11\): must be \(3, 16, 12\)"):
        model(batch()[0])


def test_a_module_that_returns_a_tuple_is_refused_in_its_first_forward() -> None:
    model = build_model(custom("tests.model.user_module:build_tuple"))
    with pytest.raises(ConfigError, match=r"build_tuple: .* returned a tuple: must return .* \(3, 16, 11\)$"):
        model(batch()[0])


def test_a_custom_module_refuses_document_boundaries() -> None:
    tokens, targets = batch()
    with pytest.raises(ConfigError, match="cannot respect document boundaries"):
        built()(tokens, targets, torch.zeros_like(tokens))
