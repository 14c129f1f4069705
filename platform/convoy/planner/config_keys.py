"""Keys that `--set` lays on a configuration: to write them as words, to apply them, and to find those that differ."""

import json
import re
import shlex
from typing import Any

from pydantic import BaseModel, ValidationError

from convoy.config.run import RunConfig

Keys = dict[str, bool | int | float | str | None]

_BACKEND = "cluster.backend"
"""Who starts a configuration that a search printed chooses the backend; a plan needs none."""


def overrides_text(keys: Keys) -> str:
    """As they are written after `--set`."""
    return " ".join(_override_text(key, value) for key, value in keys.items())


def _override_text(key: str, value: bool | int | float | str | None) -> str:
    """Text that is more than a name is quoted, for YAML and for the shell."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w.-]*", value):
        return f"{key}={value}"
    word = f"{key}={json.dumps(value)}"
    return shlex.quote(word) if isinstance(value, str) else word


def with_keys(config: RunConfig, keys: Keys) -> RunConfig | None:
    """None: the configuration is refused."""
    tree: dict[str, Any] = config.model_dump(mode="json")
    for key, value in keys.items():
        *parents, name = key.split(".")
        section = tree
        for parent in parents:
            section = section[parent]
        section[name] = value
    try:
        return RunConfig.model_validate(tree)
    except ValidationError:
        return None


def differing_keys(base: RunConfig, wanted: RunConfig) -> Keys:
    """What `--set` lays on `base` so that it is planned as `wanted` is, in the order of the configuration. A different
    model must be a preset, and is set by its name."""
    model: Keys = {} if wanted.model == base.model else {"model": wanted.model.name}
    leaves = _differing_leaves(base.model_copy(update={"model": wanted.model}), wanted)
    return {**model, **{key: value for key, value in leaves.items() if key != _BACKEND}}


def _differing_leaves(base: BaseModel | None, wanted: BaseModel, parent: str = "") -> Keys:
    """base: None: all of `wanted` differs."""
    keys: Keys = {}
    for name in type(wanted).model_fields:
        old, new, key = getattr(base, name, None), getattr(wanted, name), f"{parent}{name}"
        if base is not None and old == new:
            continue
        if isinstance(new, BaseModel):
            keys |= _differing_leaves(old if type(old) is type(new) else None, new, f"{key}.")
        else:
            keys[key] = new if new is None or isinstance(new, bool | int | float) else str(new)
    return keys
