"""A decoder transformer: embedding, the blocks of its family (`families.py`), and the head with its loss.

Shapes: b batch, s sequence, d width of the residual stream, h query heads, g key and value heads,
k width of a head, f width of the MLP, v vocabulary, p rotary pairs (k / 2).

The modules are cut for FSDP2: `embed`, each of `blocks` (or each matrix in them) and `head` can be wrapped on
their own, and every use of a parameter is inside the forward of the module that owns it. Blocks take positions
as integers, so that a policy that casts floating-point inputs to bf16 cannot blur them.
"""

from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from convoy.config.model import TransformerConfig
from convoy.model.families import family_of
from convoy.model.loss import linear_cross_entropy_sum


class Transformer(nn.Module):
    """Decoder of `config`'s shape; build it under `torch.device("meta")` and fill it with `convoy.model.init`.

    With tied embeddings `head.weight` is `embed.token.weight`, and FSDP2 must gather both in one group:
    `fully_shard([model.embed, model.head])`, in this order, or the root.
    """

    def __init__(self, config: TransformerConfig, loss_chunk_tokens: int = 0, *, fused_attention: bool = True) -> None:
        """loss_chunk_tokens: tokens whose logits exist at a time in the loss; 0 takes all of a batch at once.

        fused_attention: False computes attention as the formula is written, with a matrix of scores.
        """
        super().__init__()
        self.config = config
        self.loss_chunk_tokens = loss_chunk_tokens
        self.tensor_ranks = 1
        """Ranks that share the matrices of blocks; `parallel/tensor.py` sets it."""
        self.embed = Embed(config)
        build_block = family_of(config).build
        self.blocks = nn.ModuleList(build_block(config, fused_attention) for _ in range(config.n_layers))
        self.head = Head(config)
        self._tie_head()

    def forward(
        self,
        tokens_bs: Tensor,
        targets_bs: Tensor | None = None,
        documents_bs: Tensor | None = None,
        hidden_bsd: Tensor | None = None,
    ) -> Tensor:
        """Logits (b, s, v); or, with targets, the fp32 sum of the losses of the targets that are not IGNORE.

        documents_bs: index of the document each token belongs to, non-decreasing along s; attention stays
        within a document and positions restart at each. hidden_bsd: what the blocks before those here have made of
        the tokens, where other ranks have them. Raises ValueError beyond max_sequence_length.
        """
        length = tokens_bs.shape[1]
        if length > self.config.max_sequence_length:
            longest = self.config.max_sequence_length
            raise ValueError(f"sequence of {length} tokens: model.max_sequence_length = {longest}")
        positions, mask_b1ss = _positions_and_mask(tokens_bs, documents_bs)
        if hidden_bsd is None:
            hidden_bsd = self.embed(tokens_bs, positions)
        for block in self.blocks:
            hidden_bsd = block(hidden_bsd, positions, mask_b1ss)
        result: Tensor = self.head(hidden_bsd, targets_bs, self.loss_chunk_tokens)
        return result

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As in nn.Module; `to_empty` from meta makes a new parameter for each owner, which unties the head."""
        super()._apply(fn, recurse)
        self._tie_head()
        return self

    def _tie_head(self) -> None:
        if self.config.tied_embeddings:
            self.head.weight = self.embed.token.weight


class Embed(nn.Module):
    """Token embedding plus, where they are learned, position embeddings."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        learned = config.positions == "learned"
        self.position = nn.Embedding(config.max_sequence_length, config.d_model) if learned else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens_bs: Tensor, positions: Tensor) -> Tensor:
        """positions: (s,) or, restarting at documents, (b, s)."""
        hidden_bsd = self.token(tokens_bs)
        if self.position is not None:
            hidden_bsd = hidden_bsd + self.position(positions)
        dropped: Tensor = self.dropout(hidden_bsd)
        return dropped


class Head(nn.Module):
    """Final norm, then logits or the summed loss."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = make_norm(config)
        self.weight: Tensor = nn.Parameter(torch.empty(config.vocab_size, config.d_model))

    def forward(self, hidden_bsd: Tensor, targets_bs: Tensor | None, chunk_tokens: int) -> Tensor:
        normed_bsd, weight_vd = _to_local_partial_grad(self.norm(hidden_bsd)), _to_local_partial_grad(self.weight)
        if targets_bs is None:
            return F.linear(normed_bsd, weight_vd)
        return linear_cross_entropy_sum(normed_bsd.flatten(0, 1), weight_vd, targets_bs.flatten(), chunk_tokens)


def make_norm(config: TransformerConfig) -> nn.LayerNorm | nn.RMSNorm:
    """The norm of the configuration; both compute in fp32 whatever the input's dtype."""
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=config.bias)


def _to_local_partial_grad(tensor: Tensor) -> Tensor:
    """What this rank has of it; of a weight that others have too, each computes a part of the gradient."""
    if not isinstance(tensor, DTensor):
        return tensor
    parts = [Partial() if placement.is_replicate() else placement for placement in tensor.placements]
    own: Tensor = tensor.to_local(grad_placements=parts)
    return own


def _positions_and_mask(tokens_bs: Tensor, documents_bs: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Positions (s,) and no mask; or, with documents, positions (b, s) and a boolean mask (b, 1, s, s)."""
    order_s = torch.arange(tokens_bs.shape[1], device=tokens_bs.device)
    if documents_bs is None:
        return order_s, None
    starts_bs = torch.zeros_like(documents_bs, dtype=torch.bool)
    starts_bs[:, 1:] = documents_bs[:, 1:] != documents_bs[:, :-1]
    start_bs = torch.where(starts_bs, order_s, 0).cummax(dim=1).values
    same_bss = documents_bs.unsqueeze(2) == documents_bs.unsqueeze(1)
    causal_ss = order_s.unsqueeze(1) >= order_s
    return order_s - start_bs, (same_bss & causal_ss).unsqueeze(1)
