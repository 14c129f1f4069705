"""What a rank holds of a training."""

from collections.abc import Iterable, Iterator

import torch
from torch.distributed.tensor import DTensor


def training_state(parameters: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Weights, and what the optimizer keeps of each."""
    yield from parameters
    yield from moments(optimizer)


def moments(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """What the optimizer keeps of each weight."""
    for kept in optimizer.state.values():
        yield from (value for value in kept.values() if isinstance(value, torch.Tensor))


def held_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Of the memory behind the tensors, this rank's part of each: what several share counts once, and padding too."""
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    storages = (tensor.untyped_storage() for tensor in local)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}.values())
