"""One forward pass of one rank, as data."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Batch:
    """One forward pass of one rank."""

    index: int
    """Place among all micro batches of the step, over all ranks."""
    inputs: tuple[Any, ...]
    """Arguments of the model's forward: tokens and targets (b, S), where a target of -100 has no weight, and documents
    (b, S) or None."""
    weight: int
    """Targets that count."""
    device: torch.device
    """That of the inputs."""
