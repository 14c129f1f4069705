"""Between our configuration and the config.json of a Hugging Face GPT-2, LLaMA or Mistral folder. No torch."""

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from convoy.config.errors import ConfigError, one_line, yaml_value
from convoy.config.json_text import parse_json
from convoy.config.model import TransformerConfig
from convoy.model.hf_keys import (
    GPT2_FIELDS,
    GPT2_FIXED,
    HARMLESS,
    HEAD_WIDTH,
    LLAMA_FIELDS,
    LLAMA_FIXED,
    MISTRAL_FIELDS,
    MISTRAL_FIXED,
    REQUIRED,
    ROPE_DICTS,
    Fixed,
    Key,
)

Json = dict[str, Any]

_GPT2_FORM = {"norm": "layernorm", "positions": "learned", "mlp": "gelu", "bias": True}
_LLAMA_FORM = {"norm": "rmsnorm", "positions": "rotary", "mlp": "swiglu", "bias": False}

_COMMON = ("vocab_size", "n_layers", "d_model", "n_heads", "kv_heads", "ff_width")
_COMPARED = (*_COMMON, "norm", "norm_eps", "positions", "mlp", "bias", "tied_embeddings")


def family(config: TransformerConfig) -> str:
    """`gpt2` or `llama`: the Hugging Face model_type that computes what `config` does.

    Raises ConfigError naming the field that neither family has.
    """
    name, form = ("gpt2", _GPT2_FORM) if config.positions == "learned" else ("llama", _LLAMA_FORM)
    for field, needed in form.items():
        value = getattr(config, field)
        if value != needed:
            raise ConfigError(f"model.{field} = {value}: Hugging Face's {name} needs {needed}")
    if name == "gpt2" and config.kv_heads != config.n_heads:
        raise ConfigError(f"model.n_kv_heads = {config.kv_heads}: Hugging Face's gpt2 needs n_heads, {config.n_heads}")
    return name


def read_hf_config(folder: Path) -> TransformerConfig:
    """The shape of the model in `folder`. Raises ConfigError when it is none that we compute."""
    tree = read_json_object(folder, "config.json")
    kind = tree.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        raise refusal(folder, f"model_type {yaml_value(kind)}: must be gpt2, llama or mistral")
    form, fields, fixed = _FAMILIES[kind]
    rotary = "rope_theta" in fields
    handled = {key.name for key in fields.values()} | ({HEAD_WIDTH.name, *ROPE_DICTS} if rotary else set())
    _check_fixed(folder, tree, fixed)
    _check_known(folder, tree, handled | fixed.keys() | HARMLESS)
    values = {ours: _value(folder, tree, key) for ours, key in fields.items()}
    if rotary:
        values["rope_theta"] = _rope_theta(folder, tree, values["rope_theta"])
    try:
        config = TransformerConfig.model_validate({"name": folder.name, **form, **values})
    except ValidationError as error:
        raise refusal(folder, f"config.json gives model.{one_line(error, TransformerConfig)}") from None
    if rotary and _value(folder, tree, HEAD_WIDTH) not in (None, config.head_width):
        raise refusal(folder, f"head_dim = {tree['head_dim']} in config.json: must be {config.head_width}")
    return config


def read_json_object(folder: Path, name: str) -> Json:
    """The object in a JSON file of `folder`. Raises ConfigError when there is none."""
    try:
        if (folder / name).exists() and not (folder / name).is_file():  # to open a pipe could take for ever
            raise ValueError("it is not a regular file")
        tree = parse_json((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or not JSON
        raise refusal(folder, f"cannot read {name}: {error}") from None
    if not isinstance(tree, dict):
        raise refusal(folder, f"{name} holds {yaml_value(tree)}: must be a JSON object")
    return tree


def refusal(folder: Path, text: str) -> ConfigError:
    """That `folder` cannot be started from, and why."""
    return ConfigError(f"model.init_from = {folder}: {text}")


def check_same_shape(folder: Path, config: TransformerConfig) -> None:
    """Raise ConfigError, naming the field and both values, unless `config` is the model in `folder`."""
    found = read_hf_config(folder)
    positional = "max_sequence_length" if config.positions == "learned" else "rope_theta"
    for field in (*_COMPARED, positional):
        ours, theirs = getattr(config, field), getattr(found, field)
        if ours != theirs:
            raise ConfigError(f"model.{_key(field)} = {ours}: must be {theirs}, as in model.init_from = {folder}")


def hf_config(config: TransformerConfig, dtype: str, eos_id: int | None = None) -> Json:
    """The config.json that `transformers` reads; dtype is a torch dtype's name such as `float32`."""
    form = _to_gpt2(config) if family(config) == "gpt2" else _to_llama(config)
    # torch_dtype is what transformers before 4.56 reads.
    return {**form, "dtype": dtype, "torch_dtype": dtype, "bos_token_id": eos_id, "eos_token_id": eos_id}


def _key(field: str) -> str:
    return {"kv_heads": "n_kv_heads", "ff_width": "d_ff"}.get(field, field)


_FAMILIES = {
    "gpt2": (_GPT2_FORM, GPT2_FIELDS, GPT2_FIXED),
    "llama": (_LLAMA_FORM, LLAMA_FIELDS, LLAMA_FIXED),
    "mistral": (_LLAMA_FORM, MISTRAL_FIELDS, MISTRAL_FIXED),
}
"""By model_type: what all its models have in common, the keys that become our fields, and those with one value."""


def _check_fixed(folder: Path, tree: Json, fixed: Mapping[str, Fixed], within: str = "") -> None:
    """within: what the keys are told to be in, as in `rope_scaling.`."""
    for name, key in fixed.items():
        value = tree.get(name, key.default)
        if value not in key.allowed:
            absent = "" if name in tree else ", where the key is absent"
            needed = yaml_value(key.allowed[0])
            raise refusal(folder, f"{within}{name} = {yaml_value(value)} in config.json{absent}: must be {needed}")


def _check_known(folder: Path, tree: Json, known: AbstractSet[str]) -> None:
    """A key that is null says nothing."""
    unknown = [name for name, value in tree.items() if name not in known and value is not None]
    if unknown:
        told = f"{yaml_value(unknown[0])} = {yaml_value(tree[unknown[0]])} in config.json"
        more = "" if len(unknown) == 1 else f" (and {len(unknown) - 1} more such keys)"
        raise refusal(
            folder, f"{told}: unknown key, which may change what the model computes; remove it if it does not{more}"
        )


def _value(folder: Path, tree: Json, key: Key) -> Any:
    value = tree.get(key.name, key.default)
    if value is REQUIRED:
        raise refusal(folder, f"no key '{key.name}' in config.json")
    if (value is None and key.nullable) or type(value) is key.kind or (key.kind is float and type(value) is int):
        return value
    kinds = {int: "an integer", float: "a number", bool: "true or false"}
    raise refusal(folder, f"{key.name} = {yaml_value(json.dumps(value))} in config.json: must be {kinds[key.kind]}")


def _rope_theta(folder: Path, tree: Json, beside: float) -> float:
    """The base of plain rotary positions; versions of `transformers` differ in which of several places counts.

    beside: `rope_theta` next to the objects.
    """
    given = {name: tree[name] for name in ROPE_DICTS if tree.get(name)}
    for name, rope in given.items():
        if not isinstance(rope, dict):
            raise refusal(folder, f"{name} = {yaml_value(rope)} in config.json: must be an object")
        _check_plain_rope(folder, name, rope)
    if len(given) == 2 and tree["rope_parameters"] != tree["rope_scaling"]:
        raise refusal(folder, "rope_parameters and rope_scaling differ in config.json: remove one of them")
    theta = Key("rope_theta", float, beside)
    thetas = {_value(folder, rope, theta) for rope in given.values()} or {beside}
    if "rope_theta" in tree:
        thetas.add(beside)
    if len(thetas) > 1:
        values = " and ".join(f"{value:g}" if value < 1e300 else yaml_value(value) for value in sorted(thetas))
        raise refusal(folder, f"rope_theta is {values} in config.json: must be one value")
    return thetas.pop()


def _check_plain_rope(folder: Path, name: str, rope: Json) -> None:
    fixed = {
        "rope_type": Fixed(("default",), "default"),
        "type": Fixed(("default",), "default"),
        "partial_rotary_factor": Fixed((1.0,), 1.0),
    }
    _check_fixed(folder, rope, fixed, f"{name}.")
    for key in rope.keys() - fixed.keys() - {"rope_theta"}:
        raise refusal(folder, f"{name} has {yaml_value(key)} = {yaml_value(rope[key])} in config.json: must be absent")


def _to_gpt2(config: TransformerConfig) -> Json:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_layer": config.n_layers,
        "n_embd": config.d_model,
        "n_head": config.n_heads,
        "n_inner": config.d_ff,
        "n_positions": config.max_sequence_length,
        "layer_norm_epsilon": config.norm_eps,
        "activation_function": "gelu_new",
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tied_embeddings,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": 0.0,
    }


def _to_llama(config: TransformerConfig) -> Json:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.n_layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.ff_width,
        "max_position_embeddings": config.max_sequence_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        # transformers 5 reads rope_parameters, before it rope_theta.
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tied_embeddings,
    }
