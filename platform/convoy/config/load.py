"""From YAML, presets and `key=value` overrides to one checked RunConfig."""

import os
import shlex
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from convoy.config.errors import ConfigError, nearest, one_line
from convoy.config.run import RunConfig

Tree = dict[str, Any]


def read_run(text: str) -> Tree:
    """The base configuration from the text of a YAML file; presets are filled in, nothing is checked yet."""
    try:
        tree = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"the configuration is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        shown = text.strip()[:60]
        raise ConfigError(f"the configuration must be a mapping of keys, not {type(tree).__name__}: {shown!r}")
    return _with_preset(tree)


def read_overrides(text: str) -> Tree:
    """`"train.steps=200 model=gpt2-124m"` as a tree; values are YAML, and keys may be dotted."""
    tree: Tree = {}
    for word in shlex.split(text):
        key, equals, value = word.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError(f"override {word!r}: must have the form key=value, e.g. train.steps=200")
        tree = merged(tree, _with_preset(_nested(key.split("."), _parse_value(key, value))))
    return tree


def resolve(base: Tree, overrides: Tree) -> RunConfig:
    """The checked configuration. Raises ConfigError with one line for the user."""
    try:
        config = RunConfig.model_validate(merged(base, overrides))
    except ValidationError as error:
        raise ConfigError(one_line(error, RunConfig)) from None
    return config


def merged(base: Tree, over: Tree) -> Tree:
    """`over` laid on `base`. A mapping that chooses another `kind`, `build` or preset replaces the old one."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and not _replaces(value, old):
            result[key] = merged(old, value)
        else:
            result[key] = value
    return result


def _replaces(value: Tree, old: Tree) -> bool:
    if "kind" in value and value["kind"] != old.get("kind"):
        return True
    return "name" in value and "n_layers" in value  # a model preset is a whole model


def default_root() -> str:
    """$CONVOY_ROOT, else the nearest `.convoy` folder at or above the working directory, else one in it."""
    configured = os.environ.get("CONVOY_ROOT")
    if configured:
        return configured
    here = Path.cwd()
    found = next((p / ".convoy" for p in (here, *here.parents) if (p / ".convoy").is_dir()), here / ".convoy")
    return str(found)


def configs_folder() -> Path:
    """Where presets live: $CONVOY_CONFIGS, else `configs/` of the repository, else `./configs`."""
    configured = os.environ.get("CONVOY_CONFIGS")
    repository = Path(__file__).resolve().parents[3] / "configs"
    if configured:
        return Path(configured)
    return repository if repository.is_dir() else Path("configs")


def _with_preset(tree: Tree) -> Tree:
    """`model: llama-7b` or `model: {preset: llama-7b, n_layers: 2}` with the preset's file filled in."""
    model = tree.get("model")
    if isinstance(model, str):
        model = {"preset": model}
    if isinstance(model, dict) and "preset" in model:
        rest = {k: v for k, v in model.items() if k != "preset"}
        return {**tree, "model": {**_read_preset(str(model["preset"])), **rest}}
    return tree


def _read_preset(name: str) -> Tree:
    folder = configs_folder() / "models"
    known = sorted(p.stem for p in folder.glob("*.yaml"))
    if name not in known:
        raise ConfigError(f"model = {name}: no such preset in {folder}; {nearest(name, known)}")
    tree: Tree = yaml.safe_load((folder / f"{name}.yaml").read_text())
    return {"name": name, **tree}


def _parse_value(key: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{key} = {text}: not a YAML value; quote values with spaces or braces") from None


def _nested(keys: list[str], value: Any) -> Tree:
    rest = value if len(keys) == 1 else _nested(keys[1:], value)
    return {keys[0]: rest}
