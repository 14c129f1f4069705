"""Between our configuration and the config.json of a Hugging Face GPT-2, LLaMA or Mistral folder. No torch."""

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from convoy.config.errors import ConfigError, first_problem_line, yaml_value
from convoy.config.json_text import parse_json
from convoy.config.model import TransformerConfig
from convoy.model.families import family_of, hf_formats
from convoy.model.hf_format import HARMLESS, HEAD_WIDTH, REQUIRED, ROPE_DICTS, FieldKey, FixedKey, HfFormat

Json = dict[str, Any]

_RESOLVED = {"n_kv_heads": "kv_heads", "d_ff": "ff_width"}
"""Properties that give the value of a field whose default depends on others."""


def hf_format(config: TransformerConfig) -> HfFormat:
    """The Hugging Face model that computes what `config` does. Raises ConfigError naming the field that none has."""
    family = family_of(config)
    if not family.formats:
        raise ConfigError(f"model.name = {config.name}: Hugging Face has no model of the {family.name} family")
    chosen = next((f for f in family.formats if f.form.get("positions") == config.positions), family.formats[0])
    name = chosen.model_type
    for field, needed in chosen.form.items():
        value = getattr(config, field)
        if value != needed:
            raise ConfigError(f"model.{field} = {value}: Hugging Face's {name} needs {needed}")
    if "n_kv_heads" not in chosen.keys and config.kv_heads != config.n_heads:
        raise ConfigError(
            f"model.n_kv_heads = {config.kv_heads}: Hugging Face's {name} needs n_heads, {config.n_heads}"
        )
    return chosen


def read_hf_config(folder: Path) -> TransformerConfig:
    """The shape of the model in `folder`. Raises ConfigError when it is none that we compute."""
    tree = read_json_object(folder, "config.json")
    formats = hf_formats()
    kind = tree.get("model_type")
    if not isinstance(kind, str) or kind not in formats:
        *others, last = formats
        raise init_error(folder, f"model_type {yaml_value(kind)}: must be {', '.join(others)} or {last}")
    family, chosen = formats[kind]
    rotary = "rope_theta" in chosen.keys
    handled = {key.name for key in chosen.keys.values()} | ({HEAD_WIDTH.name, *ROPE_DICTS} if rotary else set())
    _check_fixed_keys(folder, tree, chosen.fixed)
    _check_unknown_keys(folder, tree, handled | chosen.fixed.keys() | HARMLESS)
    values = {ours: _key_value(folder, tree, key) for ours, key in chosen.keys.items()}
    if rotary:
        values["rope_theta"] = _read_rope_theta(folder, tree, values["rope_theta"])
    try:
        config = family.config.model_validate({"name": folder.name, **chosen.form, **values})
    except ValidationError as error:
        raise init_error(folder, f"config.json gives model.{first_problem_line(error, family.config)}") from None
    if rotary and _key_value(folder, tree, HEAD_WIDTH) not in (None, config.head_width):
        raise init_error(folder, f"head_dim = {tree['head_dim']} in config.json: must be {config.head_width}")
    return config


def read_json_object(folder: Path, name: str) -> Json:
    """The object in a JSON file of `folder`. Raises ConfigError when there is none."""
    try:
        if (folder / name).exists() and not (folder / name).is_file():  # to open a pipe could take for ever
            raise ValueError("it is not a regular file")
        tree = parse_json((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or not JSON
        raise init_error(folder, f"cannot read {name}: {error}") from None
    if not isinstance(tree, dict):
        raise init_error(folder, f"{name} holds {yaml_value(tree)}: must be a JSON object")
    return tree


def init_error(folder: Path, text: str) -> ConfigError:
    """That `folder` cannot be started from, and why."""
    return ConfigError(f"model.init_from = {folder}: {text}")


def check_same_shape(folder: Path, config: TransformerConfig) -> None:
    """Raise ConfigError, naming the field and both values, unless `config` is the model in `folder`."""
    in_folder = read_hf_config(folder)
    chosen = hf_format(in_folder)
    positional = "max_sequence_length" if config.positions == "learned" else "rope_theta"
    fields = [field for field in chosen.keys if field not in ("max_sequence_length", "rope_theta")]
    for field in (*fields, *chosen.form, positional):
        ours, theirs = _field_value(config, field), _field_value(in_folder, field)
        if ours != theirs:
            raise ConfigError(f"model.{field} = {ours}: must be {theirs}, as in model.init_from = {folder}")


def hf_config(config: TransformerConfig, dtype: str, eos_id: int | None = None) -> Json:
    """The config.json that `transformers` reads; dtype is a torch dtype's name such as `float32`."""
    chosen = hf_format(config)
    return {
        "architectures": [chosen.architecture],
        "model_type": chosen.model_type,
        **{key.name: _field_value(config, field) for field, key in chosen.keys.items()},
        **chosen.extra_keys(config),
        "dtype": dtype,
        "torch_dtype": dtype,  # what transformers before 4.56 reads
        "bos_token_id": eos_id,
        "eos_token_id": eos_id,
    }


def _field_value(config: TransformerConfig, field: str) -> Any:
    return getattr(config, _RESOLVED.get(field, field))


def _check_fixed_keys(folder: Path, tree: Json, fixed: Mapping[str, FixedKey], prefix: str = "") -> None:
    """prefix: what holds the keys, as in `rope_scaling.`."""
    for name, key in fixed.items():
        value = tree.get(name, key.default)
        if value not in key.allowed:
            absent = "" if name in tree else ", where the key is absent"
            needed = yaml_value(key.allowed[0])
            raise init_error(folder, f"{prefix}{name} = {yaml_value(value)} in config.json{absent}: must be {needed}")


def _check_unknown_keys(folder: Path, tree: Json, understood: AbstractSet[str]) -> None:
    """A key that is null has no effect."""
    unknown = [name for name, value in tree.items() if name not in understood and value is not None]
    if unknown:
        first = f"{yaml_value(unknown[0])} = {yaml_value(tree[unknown[0]])} in config.json"
        more = "" if len(unknown) == 1 else f" (and {len(unknown) - 1} more such keys)"
        raise init_error(
            folder, f"{first}: unknown key, which may change what the model computes; remove it if it does not{more}"
        )


def _key_value(folder: Path, tree: Json, key: FieldKey) -> Any:
    value = tree.get(key.name, key.default)
    if value is REQUIRED:
        raise init_error(folder, f"no key '{key.name}' in config.json")
    if (value is None and key.nullable) or type(value) is key.kind or (key.kind is float and type(value) is int):
        return value
    kinds = {int: "an integer", float: "a number", bool: "true or false"}
    raise init_error(folder, f"{key.name} = {yaml_value(json.dumps(value))} in config.json: must be {kinds[key.kind]}")


def _read_rope_theta(folder: Path, tree: Json, top_level_theta: float) -> float:
    """The base of plain rotary positions; versions of `transformers` differ in which of several places counts.

    top_level_theta: `rope_theta` of config.json itself.
    """
    objects = {name: tree[name] for name in ROPE_DICTS if tree.get(name)}
    for name, rope in objects.items():
        if not isinstance(rope, dict):
            raise init_error(folder, f"{name} = {yaml_value(rope)} in config.json: must be an object")
        _check_plain_rope(folder, name, rope)
    if len(objects) == 2 and tree["rope_parameters"] != tree["rope_scaling"]:
        raise init_error(folder, "rope_parameters and rope_scaling differ in config.json: remove one of them")
    theta = FieldKey("rope_theta", float, top_level_theta)
    thetas = {_key_value(folder, rope, theta) for rope in objects.values()} or {top_level_theta}
    if "rope_theta" in tree:
        thetas.add(top_level_theta)
    if len(thetas) > 1:
        values = " and ".join(f"{value:g}" if value < 1e300 else yaml_value(value) for value in sorted(thetas))
        raise init_error(folder, f"rope_theta is {values} in config.json: must be one value")
    return thetas.pop()


def _check_plain_rope(folder: Path, name: str, rope: Json) -> None:
    fixed = {
        "rope_type": FixedKey(("default",), "default"),
        "type": FixedKey(("default",), "default"),
        "partial_rotary_factor": FixedKey((1.0,), 1.0),
    }
    _check_fixed_keys(folder, rope, fixed, f"{name}.")
    for key in rope.keys() - fixed.keys() - {"rope_theta"}:
        raise init_error(
            folder, f"{name} has {yaml_value(key)} = {yaml_value(rope[key])} in config.json: must be absent"
        )
