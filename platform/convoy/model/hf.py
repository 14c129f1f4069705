"""Weights of Hugging Face folders, read and written as safetensors; `transformers` is not needed."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.model.hf_config import check_same_shape, family, hf_config

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


@dataclass(frozen=True)
class Correspondence:
    """One of our parameters and the tensors of a Hugging Face model that hold it."""

    ours: str
    theirs: tuple[str, ...]
    rows: tuple[int, ...] = ()
    """Rows of each of several tensors, which stand on top of each other in ours."""
    transposed: bool = False
    """GPT-2's Conv1D keeps (in, out) where a linear layer keeps (out, in)."""


def correspondences(config: TransformerConfig) -> list[Correspondence]:
    """Every parameter of the model, in its order. Raises ConfigError for a form neither family has."""
    is_gpt2 = family(config) == "gpt2"
    blocks = _gpt2_block if is_gpt2 else _llama_block
    pairs = [
        Correspondence("embed.token.weight", ("transformer.wte.weight" if is_gpt2 else "model.embed_tokens.weight",))
    ]
    if is_gpt2:
        pairs.append(_same("embed.position.weight", "transformer.wpe.weight"))
    for layer in range(config.n_layers):
        pairs.extend(blocks(layer, config))
    final = "transformer.ln_f" if is_gpt2 else "model.norm"
    pairs.extend(_same(f"head.norm.{part}", f"{final}.{part}") for part in _norm_parts(is_gpt2))
    if not config.tied_embeddings:
        pairs.append(_same("head.weight", "lm_head.weight"))
    return pairs


def read_hf_weights(folder: Path, config: TransformerConfig) -> Iterator[tuple[str, Tensor]]:
    """Our parameter names and full CPU tensors in the stored dtype, one at a time.

    Raises ConfigError when the folder's model is not `config`'s, or a file or tensor is missing.
    """
    check_same_shape(folder, config)
    with ExitStack() as stack:
        sources = _open_all(folder, stack)
        for pair in correspondences(config):
            parts = [_read(folder, sources, name) for name in pair.theirs]
            parts = [part.T if pair.transposed else part for part in parts]
            yield pair.ours, parts[0] if len(parts) == 1 else torch.cat(parts)


def hf_tensors(config: TransformerConfig, state_dict: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face's names and tensors of the same weights. state_dict: our full tensors by name. Raises ConfigError
    for a form neither family has."""
    for pair in correspondences(config):
        yield from _split(pair, state_dict[pair.ours])


def write_hf(
    folder: Path,
    config: TransformerConfig,
    state_dict: Mapping[str, Tensor],
    tokenizer_json: Path | None = None,
    eos_id: int | None = None,
    max_file_bytes: int = 5_000_000_000,
) -> None:
    """Write a folder that `transformers.AutoModelForCausalLM.from_pretrained` loads.

    state_dict: our full tensors by name. eos_id: token that ends a document, where there is one.
    Raises ConfigError when Hugging Face has no model that computes what `config` does.
    """
    pairs = correspondences(config)
    folder.mkdir(parents=True, exist_ok=True)
    dtype = str(state_dict[pairs[0].ours].dtype).removeprefix("torch.")
    _write_json(folder / "config.json", hf_config(config, dtype, eos_id))
    _write_json(folder / "generation_config.json", {"bos_token_id": eos_id, "eos_token_id": eos_id})
    _write_weights(folder, pairs, state_dict, max_file_bytes)
    if tokenizer_json is not None:
        _write_tokenizer(folder, config, tokenizer_json, eos_id)


def _same(ours: str, theirs: str) -> Correspondence:
    return Correspondence(ours, (theirs,))


def _norm_parts(is_gpt2: bool) -> tuple[str, ...]:
    return ("weight", "bias") if is_gpt2 else ("weight",)


def _gpt2_block(layer: int, config: TransformerConfig) -> Iterator[Correspondence]:
    ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
    for branch, norm, linears in (
        ("attention", "ln_1", {"qkv": "attn.c_attn", "out": "attn.c_proj"}),
        ("mlp", "ln_2", {"up": "mlp.c_fc", "down": "mlp.c_proj"}),
    ):
        for part in ("weight", "bias"):
            yield _same(f"{ours}.{branch}.norm.{part}", f"{theirs}.{norm}.{part}")
        for mine, name in linears.items():
            yield Correspondence(f"{ours}.{branch}.{mine}.weight", (f"{theirs}.{name}.weight",), transposed=True)
            yield _same(f"{ours}.{branch}.{mine}.bias", f"{theirs}.{name}.bias")


def _llama_block(layer: int, config: TransformerConfig) -> Iterator[Correspondence]:
    ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
    kv_rows = config.kv_heads * config.head_width
    qkv = tuple(f"{theirs}.self_attn.{x}_proj.weight" for x in "qkv")
    yield _same(f"{ours}.attention.norm.weight", f"{theirs}.input_layernorm.weight")
    yield Correspondence(f"{ours}.attention.qkv.weight", qkv, rows=(config.d_model, kv_rows, kv_rows))
    yield _same(f"{ours}.attention.out.weight", f"{theirs}.self_attn.o_proj.weight")
    yield _same(f"{ours}.mlp.norm.weight", f"{theirs}.post_attention_layernorm.weight")
    for name in ("gate", "up", "down"):
        yield _same(f"{ours}.mlp.{name}.weight", f"{theirs}.mlp.{name}_proj.weight")


def _open_all(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """The open file of each tensor, under its name without the prefix that bare models leave out."""
    index = folder / _INDEX
    names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else [_SINGLE]
    sources: dict[str, Any] = {}
    for name in names:
        try:
            file = stack.enter_context(safe_open(folder / name, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"model.init_from = {folder}: cannot read {name}: {error}") from None
        sources.update({_bare(key): (file, key) for key in file.keys()})  # noqa: SIM118
    return sources


def _read(folder: Path, sources: dict[str, Any], name: str) -> Tensor:
    if _bare(name) not in sources:
        raise ConfigError(f"model.init_from = {folder}: no tensor {name} in its safetensors files")
    file, key = sources[_bare(name)]
    tensor: Tensor = file.get_tensor(key)
    return tensor


def _bare(name: str) -> str:
    return name.removeprefix("transformer.").removeprefix("model.")


def _split(pair: Correspondence, full: Tensor) -> Iterator[tuple[str, Tensor]]:
    parts = full.split(pair.rows) if pair.rows else (full,)
    for name, part in zip(pair.theirs, parts, strict=True):
        yield name, (part.T if pair.transposed else part).contiguous()


def _write_weights(
    folder: Path, pairs: list[Correspondence], state_dict: Mapping[str, Tensor], max_file_bytes: int
) -> None:
    groups = _grouped(pairs, state_dict, max_file_bytes)
    names = [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    if len(groups) == 1:
        names = [_SINGLE]
    weight_map: dict[str, str] = {}
    for name, group in zip(names, groups, strict=True):
        tensors = {their: part for pair in group for their, part in _split(pair, state_dict[pair.ours].cpu())}
        save_file(tensors, folder / name, metadata={"format": "pt"})
        (folder / name).chmod((folder / "config.json").stat().st_mode)  # safetensors makes it readable by us alone
        weight_map.update(dict.fromkeys(tensors, name))
    if len(groups) > 1:
        total = sum(_bytes(state_dict[pair.ours]) for pair in pairs)
        _write_json(folder / _INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _grouped(
    pairs: list[Correspondence], state_dict: Mapping[str, Tensor], max_file_bytes: int
) -> list[list[Correspondence]]:
    groups: list[list[Correspondence]] = [[]]
    filled = 0
    for pair in pairs:
        size = _bytes(state_dict[pair.ours])
        if groups[-1] and filled + size > max_file_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(pair)
        filled += size
    return groups


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _write_tokenizer(folder: Path, config: TransformerConfig, tokenizer_json: Path, eos_id: int | None) -> None:
    shutil.copyfile(tokenizer_json, folder / "tokenizer.json")
    added = json.loads(tokenizer_json.read_text()).get("added_tokens") or []
    eos = next((token["content"] for token in added if token["id"] == eos_id), None)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_sequence_length,
        "clean_up_tokenization_spaces": False,
    }
    special = {"bos_token": eos, "eos_token": eos} if eos is not None else {}
    _write_json(folder / "tokenizer_config.json", {**settings, **special})


def _write_json(path: Path, tree: Any) -> None:
    path.write_text(json.dumps(tree, indent=2) + "\n")
