"""A digest stands for every byte of a tensor, whatever it looks like in memory."""

import pytest
import torch

from convoy.checkpoint.state import replicas
from convoy.checkpoint.state.replicas import SHORT_BYTES, condensed, digest


def of(tensor: torch.Tensor) -> int:
    return digest(condensed(tensor))


@pytest.mark.parametrize("elements", [1, 7, SHORT_BYTES // 4, SHORT_BYTES // 4 + 1, 100_003])
def test_any_element_that_changes_or_changes_places_changes_the_digest(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "PIECE_WORDS", 1000)
    tensor = torch.randn(elements, generator=torch.Generator().manual_seed(elements))
    wanted = of(tensor)
    for at in {0, elements // 2, elements - 1}:
        changed = tensor.clone()
        changed.view(torch.int32)[at] ^= 1
        assert of(changed) != wanted
    if elements > 1:
        assert of(tensor.roll(1)) != wanted
        assert of(tensor.roll(2000)) != wanted


def test_equal_elements_have_one_digest_however_they_lie_in_memory() -> None:
    tensor = torch.arange(100_000.0).reshape(100, 1000)
    odd_place = torch.cat((torch.zeros(1), tensor.reshape(-1)))[1:].reshape(100, 1000)
    assert of(odd_place) == of(tensor.t().contiguous().t()) == of(torch.nn.Parameter(tensor)) == of(tensor)
    assert of(tensor.reshape(-1).to(torch.complex64).conj()) == of(
        tensor.reshape(-1).to(torch.complex64).conj().clone()
    )
