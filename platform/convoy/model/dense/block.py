"""The block of GPT-2 and LLaMA: one matrix for queries, keys and values, and an MLP with or without a gate."""

from convoy.config.model import TransformerConfig
from convoy.model.block import Block, Matrix, Norm


def dense_block(config: TransformerConfig) -> Block:
    width, inner, bias = config.d_model, config.ff_width, config.bias
    queries, keys = config.n_heads * config.head_width, config.kv_heads * config.head_width
    qkv = (queries, keys, keys)
    inputs = ("gate", "up") if config.mlp == "swiglu" else ("up",)
    return Block(
        norms=tuple(Norm(name, width, config.vectors_per_norm) for name in ("attention.norm", "mlp.norm")),
        attention=(
            Matrix("attention.qkv", sum(qkv), width, "rows", bias, qkv),
            Matrix("attention.out", width, queries, "columns", bias),
        ),
        mlp=(
            *(Matrix(f"mlp.{name}", inner, width, "rows", bias) for name in inputs),
            Matrix("mlp.down", width, inner, "columns", bias),
        ),
        heads=config.n_heads,
        kv_heads=config.kv_heads,
        head_width=config.head_width,
        rotary=config.positions == "rotary",
    )
