"""Convoy's decoder in Flax NNX: layer norm, learned positions, GELU, biases and a tied head, as GPT-2 has them.

Modules are named as in `convoy.model`. Shapes as in `convoy.model.transformer`.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from convoy.config.model import TransformerConfig

_RENAMED = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
"""Names of Flax's parameters that differ from torch's."""


class Decoder(nnx.Module):
    """Tokens (b, s) to logits (b, s, v)."""

    def __init__(self, shape: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.embed = Embed(shape, rngs)
        self.blocks = nnx.List(Block(shape, rngs) for _ in range(shape.n_layers))
        self.head = Head(shape, rngs)

    def __call__(self, tokens_bs: jax.Array) -> jax.Array:
        hidden_bsd = self.embed(tokens_bs)
        for block in self.blocks:
            hidden_bsd = hidden_bsd + block.attention(hidden_bsd)
            hidden_bsd = hidden_bsd + block.mlp(hidden_bsd)
        return self.embed.token.attend(self.head.norm(hidden_bsd))


class Embed(nnx.Module):
    def __init__(self, shape: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.token = nnx.Embed(shape.vocab_size, shape.d_model, rngs=rngs)
        self.position = nnx.Embed(shape.max_sequence_length, shape.d_model, rngs=rngs)

    def __call__(self, tokens_bs: jax.Array) -> jax.Array:
        return self.token(tokens_bs) + self.position(jnp.arange(tokens_bs.shape[1]))


class Block(nnx.Module):
    def __init__(self, shape: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.attention = Attention(shape, rngs)
        self.mlp = MLP(shape, rngs)


class Attention(nnx.Module):
    def __init__(self, shape: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.heads, self.head_width = shape.n_heads, shape.head_width
        self.norm = layer_norm(shape, rngs)
        self.qkv = nnx.Linear(shape.d_model, 3 * shape.d_model, rngs=rngs)
        self.out = nnx.Linear(shape.d_model, shape.d_model, rngs=rngs)

    def __call__(self, hidden_bsd: jax.Array) -> jax.Array:
        heads_bsnk = self.qkv(self.norm(hidden_bsd)).reshape(*hidden_bsd.shape[:2], -1, self.head_width)
        mixed_bshk = jax.nn.dot_product_attention(*jnp.split(heads_bsnk, 3, axis=2), is_causal=True)
        return self.out(mixed_bshk.reshape(hidden_bsd.shape))


class MLP(nnx.Module):
    def __init__(self, shape: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.norm = layer_norm(shape, rngs)
        self.up = nnx.Linear(shape.d_model, shape.ff_width, rngs=rngs)
        self.down = nnx.Linear(shape.ff_width, shape.d_model, rngs=rngs)

    def __call__(self, hidden_bsd: jax.Array) -> jax.Array:
        return self.down(jax.nn.gelu(self.up(self.norm(hidden_bsd)), approximate=True))


class Head(nnx.Module):
    """The final norm; the matrix is the token embedding's."""

    def __init__(self, shape: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.norm = layer_norm(shape, rngs)


def layer_norm(shape: TransformerConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """With the variance as it is defined: the faster formula, Flax's default, loses digits."""
    return nnx.LayerNorm(shape.d_model, epsilon=shape.norm_eps, use_fast_variance=False, rngs=rngs)


def decoder_state(shape: TransformerConfig, weights: Mapping[str, np.ndarray]) -> tuple[nnx.GraphDef, nnx.State]:
    """The decoder's graph and its parameters, which are these weights. weights: by Convoy's names, each of which is
    used."""
    left = dict(weights)
    graph, abstract = nnx.split(nnx.eval_shape(lambda: Decoder(shape, nnx.Rngs(0))), nnx.Param)

    def fill(path: tuple[object, ...], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        *modules, last = _words(path)
        value = left.pop(".".join([*modules, _RENAMED.get(last, last)]))
        value = np.ascontiguousarray(value.T) if last == "kernel" else value
        assert value.shape == leaf.shape, (path, value.shape, leaf.shape)
        return value

    state = jax.tree_util.tree_map_with_path(fill, abstract)
    assert not left, f"weights of no parameter: {', '.join(left)}"
    return graph, state


def decayed(state: nnx.State, *, embeddings: bool) -> nnx.State:
    """The state with True for parameters that are decayed, matrices, and False for all others. embeddings: whether
    these are decayed too."""

    def is_decayed(path: tuple[object, ...], leaf: np.ndarray) -> bool:
        return leaf.ndim >= 2 and (embeddings or _words(path)[-1] != "embedding")

    return jax.tree_util.tree_map_with_path(is_decayed, state)


def _words(path: tuple[object, ...]) -> list[str]:
    """Names and indices of a parameter's path, without the key that leads from a variable to its value."""
    words = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
    return words[:-1] if words[-1] in ("value", "raw_value", "") else words
