"""Weights of Hugging Face folders, read and written as safetensors; `transformers` is not needed."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from convoy.config.json_text import parse_json
from convoy.config.model import TransformerConfig
from convoy.model.hf_config import check_same_shape, hf_config, init_error
from convoy.model.hf_tensors import HEAD, INDEX, SINGLE, Correspondence, StoredTensor, check_tensors, correspondences


def read_hf_weights(folder: Path, config: TransformerConfig) -> Iterator[tuple[str, Tensor]]:
    """Our parameter names and full CPU tensors in the stored dtype, one at a time.

    Raises ConfigError when the folder's model is not `config`'s, when its tensors are not exactly those of the model,
    or when a weight is not finite.
    """
    check_same_shape(folder, config)
    stored = check_tensors(folder, config)
    with ExitStack() as stack:
        files = {file: _open_file(folder, file, stack) for file in {tensor.file for tensor in stored.values()}}

        def read_finite_tensor(name: str) -> Tensor:
            return _refuse_nonfinite(folder, stored[name], files[stored[name].file].get_tensor(stored[name].name))

        for pair in correspondences(config):
            parts = [read_finite_tensor(name) for name in pair.theirs]
            if HEAD in stored and config.tied_embeddings and pair.ours == "embed.token.weight":
                _refuse_untied_head(folder, parts[0], read_finite_tensor(HEAD))
            parts = [part.T if pair.transposed else part for part in parts]
            yield pair.ours, parts[0] if len(parts) == 1 else torch.cat(parts)


def to_hf_tensors(config: TransformerConfig, state_dict: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face's names and tensors of the same weights. state_dict: our full tensors by name. Raises ConfigError
    for a form neither family has."""
    for pair in correspondences(config):
        yield from _split_parameter(pair, state_dict[pair.ours])


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


def _open_file(folder: Path, file: str, stack: ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(folder / file, framework="pt"))
    except (OSError, SafetensorError) as error:
        raise init_error(folder, f"cannot read {file}: {error}") from None


def _refuse_nonfinite(folder: Path, stored: StoredTensor, tensor: Tensor) -> Tensor:
    """The extremes take one pass and no memory; each is NaN where any value is."""
    if not all(torch.isfinite(extreme) for extreme in tensor.aminmax()):
        raise init_error(folder, f"tensor {stored.name} in {stored.file} holds values that are NaN or infinite")
    return tensor


def _refuse_untied_head(folder: Path, embedding: Tensor, head: Tensor) -> None:
    if not torch.equal(embedding, head.to(embedding.dtype)):
        raise init_error(folder, f"{HEAD} differs from the embedding: tie_word_embeddings in config.json must be false")


def _split_parameter(pair: Correspondence, full: Tensor) -> Iterator[tuple[str, Tensor]]:
    parts = full.split([shape[0] for shape in pair.theirs.values()]) if len(pair.theirs) > 1 else (full,)
    for name, part in zip(pair.theirs, parts, strict=True):
        yield name, (part.T if pair.transposed else part).contiguous()


def _write_weights(
    folder: Path, pairs: list[Correspondence], state_dict: Mapping[str, Tensor], max_file_bytes: int
) -> None:
    groups = _group_by_file(pairs, state_dict, max_file_bytes)
    names = [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    if len(groups) == 1:
        names = [SINGLE]
    weight_map: dict[str, str] = {}
    for name, group in zip(names, groups, strict=True):
        tensors = {their: part for pair in group for their, part in _split_parameter(pair, state_dict[pair.ours].cpu())}
        save_file(tensors, folder / name, metadata={"format": "pt"})
        (folder / name).chmod((folder / "config.json").stat().st_mode)  # safetensors makes it readable by us alone
        weight_map.update(dict.fromkeys(tensors, name))
    if len(groups) > 1:
        total = sum(state_dict[pair.ours].nbytes for pair in pairs)
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _group_by_file(
    pairs: list[Correspondence], state_dict: Mapping[str, Tensor], max_file_bytes: int
) -> list[list[Correspondence]]:
    groups: list[list[Correspondence]] = [[]]
    filled = 0
    for pair in pairs:
        size = state_dict[pair.ours].nbytes
        if groups[-1] and filled + size > max_file_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(pair)
        filled += size
    return groups


def _write_tokenizer(folder: Path, config: TransformerConfig, tokenizer_json: Path, eos_id: int | None) -> None:
    shutil.copyfile(tokenizer_json, folder / "tokenizer.json")
    added = parse_json(tokenizer_json.read_text()).get("added_tokens") or []
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
