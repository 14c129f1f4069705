"""One forward pass of one rank, as data."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Batch:
    """One forward pass of one rank: tokens and targets (b, S), target -100 has no weight; documents or None."""

    index: int
    """Place among all micro batches of the step, over all ranks."""
    tokens_bs: torch.Tensor
    targets_bs: torch.Tensor
    documents_bs: torch.Tensor | None
    weight: int
    """Targets that count."""
