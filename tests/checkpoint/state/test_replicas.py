"""What one rank writes for all is compared over the ranks: a save in which they differ fails, and says in what."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from convoy.checkpoint import CheckpointError, Checkpoints
from convoy.checkpoint.state import replicas
from convoy.checkpoint.state.replicas import SHORT_BYTES, condense, condensed_digest, describe_difference
from tests.checkpoint.test_api import gang


def test_only_what_several_ranks_hold_is_compared() -> None:
    assert describe_difference({0: {"a": 1, "b": 2}, 1: {"a": 1, "c": 3}, 2: {"b": 2}}) is None


def test_the_first_difference_is_named_with_its_ranks() -> None:
    told = str(describe_difference({0: {"a": 1, "b": 2}, 1: {"a": 1, "b": 3}, 2: {"a": 1, "b": 2}}))
    assert told.startswith("b is not the same on all ranks: rank 1 differs from rank 0; one copy")
    told = str(describe_difference({rank: {"a": rank and 1, "b": rank and 1} for rank in range(12)}))
    assert told.startswith(
        "a (and 1 more like it) is not the same on all ranks: ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more"
    )


def trained(optimizer: torch.optim.Optimizer, weights: nn.Parameter) -> None:
    weights.grad = torch.ones_like(weights)
    optimizer.step()


def save_what_differs(rank: int, uri: str) -> list[str]:
    """Errors of a buffer, of a weight that is copied beside training, and of plain values; then what is equal again."""
    weights = nn.Parameter(torch.zeros(70_000))
    optimizer = torch.optim.AdamW([weights])
    trained(optimizer, weights)
    state: dict[str, Any] = {"w": weights, "optimizer": optimizer, "mean": torch.full((3,), float(rank > 0)), "rank": 0}
    told = list[str]()
    with Checkpoints(uri, optimizer=optimizer) as ckpt:

        def refused(step: int) -> None:
            with pytest.raises(CheckpointError) as error:
                ckpt.save(step, state).wait(20.0)
            told.append(str(error.value))

        refused(1)
        assert ckpt.save(1, state, emergency=True).wait().step == 1
        state["mean"] = torch.zeros(3)
        with torch.no_grad():
            weights[-1] = rank
        refused(2)
        with torch.no_grad():
            weights.zero_()
        state["rank"] = rank
        refused(3)
        own, generators = torch.get_rng_state() + rank, [torch.empty(0)] * dist.get_world_size()
        dist.all_gather_object(generators, own)
        gathered = state | {"rank": 0, "generators": generators}
        ckpt.save(4, gathered).wait()
        for held in generators:
            held.zero_()
        assert ckpt.restore(gathered) is not None
        assert torch.equal(generators[rank], own)
    return told


def test_a_save_in_which_the_ranks_differ_fails_and_names_the_tensor_or_value(tmp_path: Path) -> None:
    first, second, third = gang(3, tmp_path, save_what_differs)
    assert [text.rpartition("; one copy")[0].removeprefix("step 1 was not saved: ") for text in first] == [
        "mean is not the same on all ranks: ranks 1, 2 differ from rank 0",
        "step 2 was not saved: w is not the same on all ranks: ranks 1, 2 differ from rank 0",
        "rank is not the same on all ranks: ranks 1, 2 differ from rank 0",
    ]
    assert second == third == [text.replace("saved: ", "saved: writer 0: ") for text in first]


def of(tensor: torch.Tensor) -> int:
    return condensed_digest(condense(tensor))


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
