"""Models as a user would bring them, for real workers."""

import subprocess

import torch
from torch import Tensor, nn


class Tiny(nn.Module):
    """One hidden layer."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens_bs: Tensor) -> Tensor:
        hidden_bsd = self.embed(tokens_bs)
        for block in self.blocks:
            hidden_bsd = hidden_bsd + torch.relu(block(hidden_bsd))
        logits_bsv: Tensor = self.out(hidden_bsd)
        return logits_bsv


def build_with_a_child(vocabulary: int = 257, width: int = 16) -> nn.Module:
    """Leaves a process running, as a compiler's pool or a data loader would."""
    subprocess.Popen(["sleep", "600"])
    return Tiny(vocabulary, width)


def build_wrongly() -> nn.Module:
    """A bug of the user's."""
    raise RuntimeError("the layers do not fit")
