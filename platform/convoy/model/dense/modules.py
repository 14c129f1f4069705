"""The modules of the block that `block.py` describes. Shapes as in `convoy.model.transformer`."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from convoy.config.model import TransformerConfig
from convoy.model.transformer import make_norm


class DenseBlock(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: TransformerConfig, fused_attention: bool = True) -> None:
        super().__init__()
        self.attention = Attention(config, fused_attention)
        self.mlp = MLP(config)

    def forward(self, hidden_bsd: Tensor, positions: Tensor, mask_b1ss: Tensor | None) -> Tensor:
        hidden_bsd = hidden_bsd + self.attention(hidden_bsd, positions, mask_b1ss)
        result: Tensor = hidden_bsd + self.mlp(hidden_bsd)
        return result


class Attention(nn.Module):
    """Norm and causal multi-head or grouped-query attention; rows of `qkv` are all queries, keys, values."""

    def __init__(self, config: TransformerConfig, fused: bool = True) -> None:
        super().__init__()
        self.fused = fused
        self.heads, self.kv_heads, self.head_width = config.n_heads, config.kv_heads, config.head_width
        self.rope_theta = config.rope_theta if config.positions == "rotary" else None
        self.norm = make_norm(config)
        self.qkv = nn.Linear(config.d_model, (self.heads + 2 * self.kv_heads) * self.head_width, bias=config.bias)
        self.out = nn.Linear(config.d_model, config.d_model, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_bsd: Tensor, positions: Tensor, mask_b1ss: Tensor | None) -> Tensor:
        heads_bsnk = self.qkv(self.norm(hidden_bsd)).unflatten(-1, (-1, self.head_width))
        # A tensor-parallel rank has the same share of the queries as of the keys and values.
        ranks = (self.heads + 2 * self.kv_heads) // heads_bsnk.shape[2]
        heads, kv_heads = self.heads // ranks, self.kv_heads // ranks
        query_key_bsnk, value_bsgk = heads_bsnk.split((heads + kv_heads, kv_heads), dim=2)
        if self.rope_theta is not None:
            query_key_bsnk = rotate(query_key_bsnk, positions, self.rope_theta)
        query_bshk, key_bsgk = query_key_bsnk.split((heads, kv_heads), dim=2)
        with nullcontext() if self.fused else sdpa_kernel(SDPBackend.MATH):
            mixed_bhsk = F.scaled_dot_product_attention(
                query_bshk.transpose(1, 2),
                key_bsgk.transpose(1, 2),
                value_bsgk.transpose(1, 2),
                attn_mask=mask_b1ss,
                is_causal=mask_b1ss is None,
                enable_gqa=kv_heads != heads,
            )
        result: Tensor = self.dropout(self.out(mixed_bhsk.transpose(1, 2).flatten(2)))
        return result


class MLP(nn.Module):
    """Norm, then down(silu(gate(x)) * up(x)), or without a gate down(gelu(up(x))) with the tanh approximation."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = make_norm(config)
        gated = config.mlp == "swiglu"
        self.gate = nn.Linear(config.d_model, config.ff_width, bias=config.bias) if gated else None
        self.up = nn.Linear(config.d_model, config.ff_width, bias=config.bias)
        self.down = nn.Linear(config.ff_width, config.d_model, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_bsd: Tensor) -> Tensor:
        if self.gate is None:  # no name for the norm's output: without gradients it is freed before the activation
            inner_bsf = F.gelu(self.up(self.norm(hidden_bsd)), approximate="tanh")
        else:
            normed_bsd = self.norm(hidden_bsd)
            inner_bsf = F.silu(self.gate(normed_bsd)) * self.up(normed_bsd)
        result: Tensor = self.dropout(self.down(inner_bsf))
        return result


def rotate(heads_bsnk: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of every head, computed in fp32 and returned in the input's dtype.

    positions: (s,) or (b, s). Pair i is the elements i and i + k/2, turned by position * theta^(-2i/k).
    Source: RoFormer (Su et al. 2021), with the pairing of the LLaMA weights in `transformers`.
    """
    width = heads_bsnk.shape[-1]
    exponents_p = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    angles_sp = positions.unsqueeze(-1).float() * theta**-exponents_p
    cos_s1p, sin_s1p = angles_sp.cos().unsqueeze(-2), angles_sp.sin().unsqueeze(-2)
    first_bsnp, second_bsnp = heads_bsnk.chunk(2, dim=-1)
    turned = (first_bsnp * cos_s1p - second_bsnp * sin_s1p, second_bsnp * cos_s1p + first_bsnp * sin_s1p)
    return torch.cat(turned, dim=-1).to(heads_bsnk.dtype)
