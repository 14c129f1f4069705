"""Modules and datasets of a user's own, for tests: they take part in a job as `model.build` and `data.build`."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset


class Samples(Dataset[Any]):
    """Points that an augmentation shifts at random, their classes and weights, and their indices."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Any]:
        drawn = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {
            "points": drawn + 0.1 * torch.randn(8),
            "label": int(drawn.sum() > 0) + int(drawn[0] > 0),
            "weight": 0.5 + index % 3,
            "index": index,
        }


def samples(split: str, size: int = 50, held_out: int = 11) -> Dataset[Any] | None:
    if split == "validation":
        return Samples(held_out) if held_out else None
    return Samples(size)


def other_samples_on_rank_1(split: str) -> Dataset[Any]:
    return Samples(50 + int(torch.distributed.get_rank() == 1))


class _NoLength:
    def __getitem__(self, index: int) -> int:
        return index


class _Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        yield from range(10)


def without_length(split: str) -> Any:
    return _NoLength()


def stream(split: str) -> Any:
    return _Stream()


def nothing(split: str) -> None:
    return None


def names(batch: list[Any]) -> Any:
    """A collate function without tensors."""
    return {"names": [str(each) for each in batch]}


class Classifier(nn.Module):
    """returns: in which form the loss is returned."""

    def __init__(self, returns: str, norm: bool) -> None:
        super().__init__()
        width = 12
        self.layers = nn.ModuleList()
        for inputs in (8, width):
            self.layers.append(nn.Sequential(nn.Linear(inputs, width), *[nn.BatchNorm1d(width)][: int(norm)]))
        self.head = nn.Linear(width, 3)
        self._returns = returns

    def forward(self, points: Tensor, label: Tensor, weight: Tensor, index: Tensor) -> Any:
        for layer in self.layers:
            points = layer(points).relu()
        logits = self.head(points)
        each = F.cross_entropy(logits.float(), label, reduction="none")
        match self._returns:
            case "mean":
                return each.mean()
            case "weighted":
                return (each * weight).sum(), weight.sum()
            case "dict":
                return {"loss": each.mean(), "logits": logits}
            case "detached":
                return each.mean().detach()
        return logits


def classifier(returns: str = "mean", norm: bool = False) -> nn.Module:
    return Classifier(returns, norm)
