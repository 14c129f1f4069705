"""Modules and datasets of a user's own, for tests: they take part in a job as `model.build` and `data.build`."""

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, get_worker_info


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


class Numbers(IterableDataset[Any]):
    """The points of every so-manieth index, by rank and worker; an end begins again at the first."""

    def __init__(self, size: int, note: Any = None) -> None:
        self._size = size
        self._note = note
        self._next = 0
        self._state: dict[str, Any] = {}

    def __iter__(self) -> Any:
        worker = get_worker_info()
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        parts, own = ranks * workers, rank * workers + number
        while (index := self._next * parts + own) < self._size:
            self._next += 1
            yield Samples(self._size)[index] | {"points": torch.ones(8) * self._next}
        self._next = 0

    def state_dict(self) -> dict[str, Any]:
        """The same dict each time."""
        self._state |= {"next": self._next} if self._note is None else {"next": self._next, "note": self._note}
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


class OwnIterator(Numbers):
    """It is its own iterator, and changes the list in its state."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._place = [torch.distributed.get_rank()]

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        index = self._place[0]
        if index >= self._size:
            self._place[0] = torch.distributed.get_rank()
            raise StopIteration
        self._place[0] += torch.distributed.get_world_size()
        return Samples(self._size)[index] | {"points": torch.ones(8) * index}

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._place = state["place"]


def without_length(split: str) -> Any:
    return _NoLength()


def stream_without_state(split: str) -> Any:
    return _Stream()


def stream(split: str, size: int = 20, held_out: bool = False) -> Any:
    if split == "validation":
        return Numbers(size) if held_out else Samples(5)
    return Numbers(size)


def own_iterator(split: str, size: int = 20) -> Any:
    return Samples(5) if split == "validation" else OwnIterator(size)


def stream_with_an_object_in_its_state(split: str) -> Any:
    return Numbers(20, note=object()) if split == "train" else None


def stream_on_rank_1(split: str) -> Any:
    return Numbers(20) if split == "train" and torch.distributed.get_rank() else Samples(20)


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
        self.calls = 0

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
            case "masked":
                self.calls += 1
                kept = weight * (self.calls != 3)
                return (each * kept).sum(), kept.sum()
            case "detached":
                return each.mean().detach()
        return logits


def classifier(returns: str = "mean", norm: bool = False) -> nn.Module:
    return Classifier(returns, norm)


def classifier_after_all_ranks() -> nn.Module:
    torch.distributed.barrier()
    return Classifier("weighted", norm=False)


class Counting(Classifier):
    """With a frozen layer, a buffer that each forward replaces, and noise that numpy and `random` draw."""

    def __init__(self) -> None:
        super().__init__("weighted", norm=False)
        self.layers[0].requires_grad_(False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, points: Tensor, label: Tensor, weight: Tensor, index: Tensor) -> Any:
        self.seen = self.seen + 1
        noise = float(np.random.standard_normal() + random.random())
        return super().forward(points * (1 + 0.01 * noise), label, weight, index)


def counting() -> nn.Module:
    return Counting()


class Conditional(Classifier):
    """It leaves a layer out from the third call on."""

    def __init__(self) -> None:
        super().__init__("weighted", norm=False)
        self.extra = nn.Linear(8, 8)

    def forward(self, points: Tensor, label: Tensor, weight: Tensor, index: Tensor) -> Any:
        self.calls += 1
        if self.calls <= 2:
            points = self.extra(points)
        return super().forward(points, label, weight, index)


def conditional() -> nn.Module:
    return Conditional()


class OfImages(nn.Linear):
    def forward(self, images: Tensor) -> Any:
        return super().forward(images).mean()


def of_images() -> nn.Module:
    return OfImages(8, 1)


class Late(Classifier):
    """A forward makes its buffer."""

    def __init__(self) -> None:
        super().__init__("weighted", norm=False)
        self.register_buffer("late", None)

    def forward(self, points: Tensor, label: Tensor, weight: Tensor, index: Tensor) -> Any:
        self.late = torch.ones(2)
        return super().forward(points, label, weight, index)


def late() -> nn.Module:
    return Late()
