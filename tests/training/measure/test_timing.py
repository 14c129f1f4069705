"""What the probe makes its measurements of."""

from typing import Any

import pytest
import torch

from convoy.training.measure.timing import random


def test_numbers_are_made_in_the_type_in_which_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wider one they would take more of a GPU's memory than is free beside training."""
    made: list[torch.dtype] = []
    randn = torch.randn

    def seen(*args: Any, **kwargs: Any) -> torch.Tensor:
        x = randn(*args, **kwargs)
        made.append(x.dtype)
        return x

    monkeypatch.setattr(torch, "randn", seen)
    assert random(torch.device("cpu"), torch.bfloat16, 4).dtype == made[0]
    assert made == [torch.bfloat16]
