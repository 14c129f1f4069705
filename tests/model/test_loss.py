from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from convoy.model.loss import IGNORE, linear_cross_entropy_sum


def case(tokens: int, width: int, vocabulary: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, width, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = (hidden @ weight.T).to(torch.promote_types(hidden.dtype, torch.float32))
    return F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")


def relative(actual: Tensor, expected: Tensor) -> float:
    return float(((actual - expected).abs().max() / expected.abs().max()).detach())


def gradients(loss: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("chunk", [0, 1, 7, 32, 100, 1000])
def test_loss_and_gradients_equal_plain_cross_entropy_in_fp32(chunk: int) -> None:
    hidden, weight, targets = case(100, 16, 53)
    targets[::9] = IGNORE
    ours, theirs = linear_cross_entropy_sum(hidden, weight, targets, chunk), plain(hidden, weight, targets)
    assert ours.dtype == torch.float32
    assert relative(ours, theirs) <= 1e-6
    for mine, reference in zip(gradients(ours, hidden, weight), gradients(theirs, hidden, weight), strict=True):
        assert relative(mine, reference) <= 1e-6


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_under_autocast_logits_are_in_its_type_and_the_loss_in_fp32(weights: torch.dtype) -> None:
    hidden, weight, targets = case(100, 16, 53, weights)
    with torch.autocast("cpu", torch.bfloat16):
        ours = linear_cross_entropy_sum(hidden, weight, targets, 7)
        logits = F.linear(hidden, weight)
    expected = F.cross_entropy(logits.float(), targets, reduction="sum")
    assert (ours.dtype, logits.dtype) == (torch.float32, torch.bfloat16)
    assert relative(ours, expected) <= 1e-6
    for mine, reference in zip(gradients(ours, hidden, weight), gradients(expected, hidden, weight), strict=True):
        assert mine.dtype == weights
        assert relative(mine, reference) <= 0.02


@settings(max_examples=25, deadline=None)
@given(tokens=st.integers(1, 40), chunk=st.integers(0, 50), every=st.integers(1, 6), scale=st.floats(-3, 3))
def test_any_chunk_and_any_ignored_positions_give_the_float64_gradients(
    tokens: int, chunk: int, every: int, scale: float
) -> None:
    hidden, weight, targets = case(tokens, 5, 11, torch.float64)
    targets[::every] = IGNORE
    ours, theirs = linear_cross_entropy_sum(hidden, weight, targets, chunk), plain(hidden, weight, targets)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    mine, reference = gradients(ours * scale, hidden, weight), gradients(theirs * scale, hidden, weight)
    torch.testing.assert_close(mine, reference, rtol=1e-12, atol=1e-12)


def test_when_every_target_is_ignored_loss_and_gradients_are_zero() -> None:
    hidden, weight, _ = case(8, 4, 6)
    loss = linear_cross_entropy_sum(hidden, weight, torch.full((8,), IGNORE), 3)
    assert loss == 0
    assert all(not gradient.any() for gradient in gradients(loss, hidden, weight))


def test_very_large_logits_stay_finite() -> None:
    hidden, weight, targets = case(12, 4, 6)
    big = (hidden.detach() * 1e4).requires_grad_()
    loss = linear_cross_entropy_sum(big, weight, targets, 5)
    assert relative(loss, plain(big, weight, targets)) <= 1e-6
    assert all(gradient.isfinite().all() for gradient in gradients(loss, big, weight))


def test_without_gradients_the_loss_is_the_same_number() -> None:
    hidden, weight, targets = case(50, 8, 17)
    with_gradients = linear_cross_entropy_sum(hidden, weight, targets, 16)
    with torch.no_grad():
        without = linear_cross_entropy_sum(hidden, weight, targets, 16)
    assert not without.requires_grad
    assert torch.equal(with_gradients.detach(), without)


def test_bf16_keeps_the_loss_in_fp32_and_the_gradients_in_bf16() -> None:
    hidden, weight, targets = case(200, 16, 40, torch.bfloat16)
    loss = linear_cross_entropy_sum(hidden, weight, targets, 64)
    assert loss.dtype == torch.float32
    exact_inputs = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    exact = plain(*exact_inputs, targets)
    assert relative(loss, exact) < 2e-3
    for mine, reference in zip(gradients(loss, hidden, weight), gradients(exact, *exact_inputs), strict=True):
        assert mine.dtype == torch.bfloat16
        assert relative(mine, reference) < 2e-2


def test_the_weight_gradient_does_not_lose_small_chunks_in_bf16() -> None:
    """4,096 equal contributions summed in bf16 stop growing at 256 times one of them; in fp32 they do not."""
    hidden = torch.ones(4096, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    loss = linear_cross_entropy_sum(hidden, weight, torch.zeros(4096, dtype=torch.long), 1)
    (gradient,) = gradients(loss, weight)
    assert gradient.tolist() == [[-2048.0], [2048.0]]


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.elements = max(
            [self.elements, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))]
        )
        return result


@pytest.mark.parametrize("chunk", [0, 32])
def test_only_a_chunk_of_logits_ever_exists(chunk: int) -> None:
    tokens, width, vocabulary = 256, 4, 100
    hidden, weight, targets = case(tokens, width, vocabulary)
    with LargestTensor() as largest:
        linear_cross_entropy_sum(hidden, weight, targets, chunk).backward()
    assert largest.elements == (chunk or tokens) * vocabulary


def test_nothing_the_size_of_the_logits_is_kept_for_backward() -> None:
    hidden, weight, targets = case(256, 4, 100)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        linear_cross_entropy_sum(hidden, weight, targets, 32)
    assert max(kept) == max(hidden.numel(), weight.numel())
