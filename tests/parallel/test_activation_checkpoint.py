"""Recomputation changes memory, never results."""

from typing import Literal

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from convoy.parallel.fsdp import recomputed
from tests.model.models import GPT2, ready

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
    out_bsd = recomputed(block, mode)(hidden_bsd.requires_grad_(), positions_s, None)
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
    assert recomputed(block, "none") is block
