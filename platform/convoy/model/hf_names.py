"""Our parameters and the tensors of a Hugging Face model that hold them. No torch."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from convoy.config.model import TransformerConfig
from convoy.model.hf_config import family

_PREFIX = {"gpt2": "transformer.", "llama": "model."}
"""Files of a bare model, without its head, leave it out."""

_BUFFERS = {
    "gpt2": re.compile(r"h\.\d+\.attn\.(bias|masked_bias)"),
    "llama": re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
}
"""Constants that older versions of `transformers` saved, and that every version computes itself."""

HEAD = "lm_head.weight"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Correspondence:
    """One of our parameters and the tensors of a Hugging Face model that hold it."""

    ours: str
    theirs: Mapping[str, Shape]
    """Names and shapes. The rows of several tensors stand on top of each other in ours."""
    transposed: bool = False
    """GPT-2's Conv1D keeps (in, out) where a linear layer keeps (out, in)."""


def correspondences(config: TransformerConfig) -> list[Correspondence]:
    """Every parameter of the model, in its order. Raises ConfigError for a form neither family has."""
    is_gpt2 = family(config) == "gpt2"
    width, table = config.d_model, (config.vocab_size, config.d_model)
    pairs = [_same("embed.token.weight", "transformer.wte.weight" if is_gpt2 else "model.embed_tokens.weight", table)]
    if is_gpt2:
        pairs.append(_same("embed.position.weight", "transformer.wpe.weight", (config.max_sequence_length, width)))
    for layer in range(config.n_layers):
        pairs.extend(_gpt2_block(layer, config) if is_gpt2 else _llama_block(layer, config))
    final = "transformer.ln_f" if is_gpt2 else "model.norm"
    parts = ("weight", "bias") if is_gpt2 else ("weight",)
    pairs.extend(_same(f"head.norm.{part}", f"{final}.{part}", (width,)) for part in parts)
    if not config.tied_embeddings:
        pairs.append(_same("head.weight", HEAD, table))
    return pairs


def tensor_shapes(config: TransformerConfig) -> dict[str, Shape]:
    """Every tensor that a folder of this model must have."""
    return {name: shape for pair in correspondences(config) for name, shape in pair.theirs.items()}


def bare(config: TransformerConfig, name: str) -> str:
    """A tensor's name in the files of a model without its head."""
    return name.removeprefix(_PREFIX[family(config)])


def is_buffer(config: TransformerConfig, name: str) -> bool:
    """Whether a tensor is a constant that is no weight."""
    return _BUFFERS[family(config)].fullmatch(bare(config, name)) is not None


def _same(ours: str, theirs: str, shape: Shape) -> Correspondence:
    return Correspondence(ours, {theirs: shape})


def _gpt2_block(layer: int, config: TransformerConfig) -> Iterator[Correspondence]:
    ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
    width, inner = config.d_model, config.ff_width
    for branch, norm, linears in (
        ("attention", "ln_1", {"qkv": ("attn.c_attn", width, 3 * width), "out": ("attn.c_proj", width, width)}),
        ("mlp", "ln_2", {"up": ("mlp.c_fc", width, inner), "down": ("mlp.c_proj", inner, width)}),
    ):
        for part in ("weight", "bias"):
            yield _same(f"{ours}.{branch}.norm.{part}", f"{theirs}.{norm}.{part}", (width,))
        for mine, (name, n_in, n_out) in linears.items():
            weight = {f"{theirs}.{name}.weight": (n_in, n_out)}
            yield Correspondence(f"{ours}.{branch}.{mine}.weight", weight, transposed=True)
            yield _same(f"{ours}.{branch}.{mine}.bias", f"{theirs}.{name}.bias", (n_out,))


def _llama_block(layer: int, config: TransformerConfig) -> Iterator[Correspondence]:
    ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
    width, inner, kv_rows = config.d_model, config.ff_width, config.kv_heads * config.head_width
    rows = {"q": width, "k": kv_rows, "v": kv_rows}
    qkv = {f"{theirs}.self_attn.{x}_proj.weight": (count, width) for x, count in rows.items()}
    yield _same(f"{ours}.attention.norm.weight", f"{theirs}.input_layernorm.weight", (width,))
    yield Correspondence(f"{ours}.attention.qkv.weight", qkv)
    yield _same(f"{ours}.attention.out.weight", f"{theirs}.self_attn.o_proj.weight", (width, width))
    yield _same(f"{ours}.mlp.norm.weight", f"{theirs}.post_attention_layernorm.weight", (width,))
    for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
        yield _same(f"{ours}.mlp.{name}.weight", f"{theirs}.mlp.{name}_proj.weight", shape)
