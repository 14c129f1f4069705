"""A model as a user would bring it."""

import torch
from torch import Tensor, nn


class Bigrams(nn.Module):
    """Mixes each token with the one before it, through two lists of blocks, one of which nests a third."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.decoder = nn.ModuleDict({"blocks": nn.ModuleList([nn.ModuleList([nn.Linear(width, width)])])})
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens_bs: Tensor) -> Tensor:
        hidden_bsd = self.embed(tokens_bs)
        before_bsd = torch.cat((torch.zeros_like(hidden_bsd[:, :1]), hidden_bsd[:, :-1]), dim=1)
        for block in (*self.encoder, self.decoder["blocks"][0][0]):
            hidden_bsd = hidden_bsd + torch.tanh(block(hidden_bsd + before_bsd))
        logits_bsv: Tensor = self.out(hidden_bsd)
        return logits_bsv


def build(vocabulary: int = 11, width: int = 8) -> nn.Module:
    return Bigrams(vocabulary, width)


def build_nothing() -> None:
    return None


def build_with_a_spare(vocabulary: int = 257, width: int = 8) -> nn.Module:
    """With a parameter that takes no part in the loss."""
    module = Bigrams(vocabulary, width)
    module.spare = nn.Linear(width, width)
    return module
