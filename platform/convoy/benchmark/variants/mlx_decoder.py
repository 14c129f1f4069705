"""Convoy's decoder in `mlx.nn`: layer norm, learned positions, GELU, biases and a tied head, as GPT-2 has them.

Modules and weights are named as in `convoy.model`. Shapes as in `convoy.model.transformer`.
"""

import mlx.core as mx
import mlx.nn as nn

from convoy.config.model import TransformerConfig


class Decoder(nn.Module):
    """Tokens (b, s) to logits (b, s, v)."""

    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.embed = Embed(shape)
        self.blocks = [Block(shape) for _ in range(shape.n_layers)]
        self.head = Head(shape)

    def __call__(self, tokens_bs: mx.array) -> mx.array:
        hidden_bsd = self.embed(tokens_bs)
        for block in self.blocks:
            hidden_bsd = hidden_bsd + block.attention(hidden_bsd)
            hidden_bsd = hidden_bsd + block.mlp(hidden_bsd)
        return self.embed.token.as_linear(self.head.norm(hidden_bsd))


class Embed(nn.Module):
    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocab_size, shape.d_model)
        self.position = nn.Embedding(shape.max_sequence_length, shape.d_model)

    def __call__(self, tokens_bs: mx.array) -> mx.array:
        return self.token(tokens_bs) + self.position(mx.arange(tokens_bs.shape[1]))


class Block(nn.Module):
    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.mlp = MLP(shape)


class Attention(nn.Module):
    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self._head_width = shape.head_width
        self.norm = nn.LayerNorm(shape.d_model, eps=shape.norm_eps)
        self.qkv = nn.Linear(shape.d_model, 3 * shape.d_model)
        self.out = nn.Linear(shape.d_model, shape.d_model)

    def __call__(self, hidden_bsd: mx.array) -> mx.array:
        heads_bnsk = mx.unflatten(self.qkv(self.norm(hidden_bsd)), -1, (-1, self._head_width)).swapaxes(1, 2)
        query_bhsk, key_bhsk, value_bhsk = mx.split(heads_bnsk, 3, axis=1)
        mixed_bhsk = mx.fast.scaled_dot_product_attention(
            query_bhsk, key_bhsk, value_bhsk, scale=self._head_width**-0.5, mask="causal"
        )
        return self.out(mixed_bhsk.swapaxes(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.d_model, eps=shape.norm_eps)
        self.up = nn.Linear(shape.d_model, shape.ff_width)
        self.down = nn.Linear(shape.ff_width, shape.d_model)

    def __call__(self, hidden_bsd: mx.array) -> mx.array:
        return self.down(nn.gelu_approx(self.up(self.norm(hidden_bsd))))


class Head(nn.Module):
    """The final norm; the matrix is the token embedding's."""

    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.d_model, eps=shape.norm_eps)
