"""A model as a user would bring it."""

from typing import Any

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


def build_tuple(**args: int) -> nn.Module:
    """Whose forward gives the logits and something else."""

    class WithCache(Bigrams):
        def forward(self, tokens_bs: Tensor) -> Any:
            return super().forward(tokens_bs), None

    return WithCache(**{"vocabulary": 11, "width": 8, **args})


def build_frozen() -> nn.Module:
    return build().requires_grad_(False)


def build_mixed() -> nn.Module:
    """With the parameters of one layer in another type."""
    module = Bigrams(11, 8)
    module.out.bfloat16()
    return module


def build_lazy() -> nn.Module:
    module = Bigrams(11, 8)
    module.out = nn.LazyLinear(11)  # type: ignore[assignment]
    return module


def build_on_meta() -> nn.Module:
    with torch.device("meta"):
        return build()


class Centred(nn.Module):
    """Subtracts a running mean in training too, and has more buffers, each kept in another way."""

    ema: Tensor
    calls: Tensor
    cache: Tensor

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.norm = nn.BatchNorm1d(width)
        self.out = nn.Linear(width, vocabulary)
        self.register_buffer("ema", torch.zeros(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int8))  # one byte: what follows it is not aligned
        self.register_buffer("constant", torch.arange(3.0))
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def forward(self, tokens_bs: Tensor) -> Tensor:
        hidden_bsd = self.norm(self.embed(tokens_bs).transpose(1, 2)).transpose(1, 2)
        self.calls += 1  # in evaluation too
        self.cache = hidden_bsd.detach().new_zeros(int(tokens_bs[0, 0]) + 1)
        logits_bsv: Tensor = self.out(hidden_bsd - self.ema)
        self.ema = 0.9 * self.ema + 0.1 * self.embed(tokens_bs).detach().mean((0, 1))
        return logits_bsv


def build_with_buffers(vocabulary: int = 257, width: int = 24) -> nn.Module:
    return Centred(vocabulary, width)


class Growing(Bigrams):
    """Has a buffer that grows with each forward."""

    seen: Tensor

    def forward(self, tokens_bs: Tensor) -> Tensor:
        self.seen = torch.cat((self.seen, tokens_bs[0, :1]))
        return super().forward(tokens_bs)


def build_growing() -> nn.Module:
    module = Growing(257, 24)
    module.register_buffer("seen", torch.zeros(1, dtype=torch.int64))
    return module
