import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from convoy.config.model import TransformerConfig
from convoy.model.dense.modules import rotate
from convoy.model.loss import IGNORE
from convoy.model.transformer import Transformer
from tests.model.models import FORMS, GPT2, LLAMA, MIXED, random_tokens, ready, sharded
from tests.ranks import in_a_group

every_form = pytest.mark.parametrize("config", FORMS.values(), ids=FORMS)


@every_form
@pytest.mark.parametrize("chunk", [0, 5])
def test_the_loss_is_the_sum_over_targets_that_are_not_ignored(config: TransformerConfig, chunk: int) -> None:
    model = ready(config, loss_chunk_tokens=chunk)
    tokens, targets = random_tokens(config), random_tokens(config, seed=2)
    targets[:, -4:] = IGNORE
    expected = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(model(tokens, targets), expected, rtol=1e-6, atol=0)


@every_form
def test_no_position_sees_what_comes_after_it(config: TransformerConfig) -> None:
    model = ready(config)
    tokens = random_tokens(config)
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % config.vocab_size
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=0, atol=1e-6)
    assert (before[:, 9:] - after[:, 9:]).abs().amax(dim=-1).min() > 1e-4


@every_form
def test_documents_packed_together_are_computed_as_if_each_were_alone(config: TransformerConfig) -> None:
    model = ready(config)
    first, second, third = (random_tokens(config, 1, length, seed=length) for length in (5, 8, 3))
    packed = torch.cat((first, second, third), dim=1)
    documents = torch.tensor([[0] * 5 + [1] * 8 + [2] * 3])
    alone = torch.cat([model(document) for document in (first, second, third)], dim=1)
    torch.testing.assert_close(model(packed, documents_bs=documents), alone, rtol=1e-5, atol=1e-5)
    assert (model(packed) - alone)[:, 5:].abs().max() > 1e-3


def test_each_row_of_a_batch_has_its_own_documents() -> None:
    model = ready(MIXED)
    tokens = random_tokens(MIXED, batch=2, length=6)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1], [3, 3, 4, 4, 4, 4]])
    together = model(tokens, documents_bs=documents)
    for row in range(2):
        single = model(tokens[row : row + 1], documents_bs=documents[row : row + 1])
        torch.testing.assert_close(together[row], single[0], rtol=1e-5, atol=1e-5)


def test_a_tied_head_is_the_token_embedding_also_after_leaving_meta() -> None:
    model = ready(GPT2)
    assert model.head.weight is model.embed.token.weight
    assert "head.weight" not in dict(model.named_parameters())
    untied = ready(LLAMA)
    assert untied.head.weight is not untied.embed.token.weight


def test_every_parameter_gets_a_gradient() -> None:
    for config in FORMS.values():
        model = ready(config)
        model(random_tokens(config), random_tokens(config, seed=2)).backward()
        without = [name for name, parameter in model.named_parameters() if not parameter.grad.any()]
        assert without == []


def test_a_sequence_longer_than_the_positions_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"25 tokens: model.max_sequence_length = 24"):
        ready(LLAMA)(random_tokens(LLAMA, length=25))


def test_dropout_acts_in_training_only() -> None:
    config = GPT2.model_copy(update={"dropout": 0.5})
    model, tokens = ready(config), random_tokens(config)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
    torch.testing.assert_close(model(tokens), ready(GPT2)(tokens))


def turned_pair(angle: float) -> Tensor:
    heads = torch.zeros(1, 1, 1, 2)
    heads[..., 0] = 1.0
    return rotate(heads, torch.tensor([angle]), theta=10000.0).flatten()


def test_rotary_turns_a_pair_by_its_position() -> None:
    torch.testing.assert_close(turned_pair(3.0), torch.tensor([math.cos(3.0), math.sin(3.0)]))


def test_rotary_scores_depend_on_the_distance_only() -> None:
    query, key = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def score(query_at: int, key_at: int) -> Tensor:
        turned = rotate(query, torch.tensor([query_at]), 10000.0), rotate(key, torch.tensor([key_at]), 10000.0)
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(9, 4), score(105, 100), rtol=1e-4, atol=1e-4)
    assert (score(9, 4) - score(9, 5)).abs() > 1e-4


def test_rotary_angles_are_exact_at_far_positions_in_bf16() -> None:
    """4,095 is not a bf16 number: angles computed in bf16 would be those of position 4,096."""
    heads = torch.randn(1, 1, 1, 16).bfloat16()
    far = torch.tensor([4095])
    exact = rotate(heads.float(), far, 10000.0)
    assert rotate(heads, far, 10000.0).dtype == torch.bfloat16
    torch.testing.assert_close(rotate(heads, far, 10000.0).float(), exact, rtol=1e-2, atol=1e-2)


def test_rmsnorm_in_bf16_squares_in_fp32() -> None:
    norm = ready(LLAMA).bfloat16().head.norm
    hidden = (torch.randn(64, LLAMA.d_model) * 300).bfloat16()
    exact = hidden.double() / (hidden.double().square().mean(-1, keepdim=True) + LLAMA.norm_eps).sqrt()
    torch.testing.assert_close(norm(hidden).double(), exact, rtol=1.2e-2, atol=1e-6)


@every_form
def test_bf16_loss_is_near_the_fp32_loss(config: TransformerConfig) -> None:
    tokens, targets = random_tokens(config), random_tokens(config, seed=2)
    exact = ready(config)(tokens, targets)
    rounded = ready(config).bfloat16()(tokens, targets)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=2e-2, atol=0)


def full_gradients(model: Transformer) -> dict[str, Tensor]:
    return {name: getattr(p.grad, "full_tensor", lambda g=p.grad: g)() for name, p in model.named_parameters()}


def step(rank: int, config: TransformerConfig, bf16: bool) -> tuple[float, dict[str, Tensor]]:
    model = sharded(config, bf16=bf16, loss_chunk_tokens=5)
    loss = model(random_tokens(config), random_tokens(config, seed=2))
    loss.backward()
    # A tied head must be the one tensor the optimizer would see.
    assert not config.tied_embeddings or model.head.weight is model.embed.token.weight
    return float(loss.detach()), full_gradients(model)


@pytest.mark.sampled(3)
@every_form
@pytest.mark.parametrize("bf16", [False, True])
def test_sharded_over_two_ranks_loss_and_gradients_are_those_of_one_process(
    config: TransformerConfig, bf16: bool
) -> None:
    tokens, targets = random_tokens(config), random_tokens(config, seed=2)
    alone = ready(config, loss_chunk_tokens=5)
    if bf16:
        alone = alone.bfloat16()
    loss = alone(tokens, targets)
    loss.backward()
    for sharded_loss, gradients in in_a_group(2, step, config, bf16):
        assert sharded_loss == pytest.approx(float(loss.detach()), rel=1e-3 if bf16 else 1e-6)
        assert gradients.keys() == full_gradients(alone).keys()
        for name, gradient in full_gradients(alone).items():
            tolerance = float(gradient.abs().max()) * (2e-2 if bf16 else 1e-5)
            torch.testing.assert_close(gradients[name], gradient.float(), rtol=0, atol=tolerance)
