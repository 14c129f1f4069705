"""From YAML, presets and `key=value` overrides to one checked RunConfig."""

import os
import shlex
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from convoy.config.engine import ENGINES, EngineConfig
from convoy.config.errors import ConfigError, Keys, classes_at, first_problem_line, name_hint, yaml_value
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.config.yaml_text import YamlError, parse_yaml

Tree = dict[str, Any]


def read_run(text: str) -> Tree:
    """The base configuration from the text of a YAML file; presets are filled in, nothing is checked yet."""
    return expand_shorthands(read_tree("the configuration", text))


def read_overrides(text: str) -> Tree:
    """`"train.steps=200 model=gpt2-124m"` as a tree; values are YAML, and keys may be dotted.

    The last of two equal keys counts; otherwise their order does not matter: a preset lies below its fields.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"overrides {yaml_value(text)!r}: {str(error).lower()}") from None
    tree: Tree = {}
    for word in words:
        key, equals, value = word.partition("=")
        keys = tuple(key.split("."))
        if not equals or not all(keys):
            raise ConfigError(
                f"override {yaml_value(word)!r}: must have the form key=value, e.g. train.steps=200; "
                "quote values with spaces"
            )
        parsed = _parse_value(key, value)
        if isinstance(parsed, str) and (inner := {"model": "preset", "engine": "name"}.get(key)):
            keys = (*keys, inner)
        tree = _merge_plain(tree, _nest_value(keys, parsed))
    return expand_shorthands(tree)


def resolve(base: Tree, overrides: Tree) -> RunConfig:
    """The checked configuration: defaults, then `base`, then `overrides`. Raises ConfigError with one line."""
    defaults = RunConfig().model_dump(mode="json")
    try:
        return RunConfig.model_validate(merge_config(merge_config(defaults, base), overrides))
    except ValidationError as error:
        raise ConfigError(first_problem_line(error, RunConfig)) from None


def merge_config(base: Tree, overrides: Tree, at: Keys = ()) -> Tree:
    """`overrides` laid on `base`, both at the keys `at` of a RunConfig.

    Where the configuration allows one of several classes (corpus, tokenizer, model), an override that chooses another
    class replaces what was there, and so does a model that is spelled out in full, as presets are.
    """
    result = dict(base)
    for key, value in overrides.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and not _replaces_whole(value, old, (*at, key)):
            result[key] = merge_config(old, value, (*at, key))
        else:
            result[key] = value
    return result


def _replaces_whole(value: Tree, old: Tree, at: Keys) -> bool:
    if at == ("data",):
        return bool(value.get("build")) and not old.get("build")
    if at == ("engine",):
        return "name" in value and value["name"] != old.get("name")
    if len(classes_at(RunConfig, at)) < 2:
        return False
    another_kind = "kind" in value and value["kind"] != old.get("kind")
    custom_model = "build" in value and "build" not in old
    preset = TransformerConfig.model_fields.keys() <= value.keys()
    return another_kind or custom_model or preset


def _merge_plain(base: Tree, overrides: Tree) -> Tree:
    both = {key for key in overrides if isinstance(base.get(key), dict) and isinstance(overrides[key], dict)}
    return {**base, **overrides, **{key: _merge_plain(base[key], overrides[key]) for key in both}}


def default_root() -> str:
    """$CONVOY_ROOT, else the nearest `.convoy` folder at or above the working directory, else one in it."""
    configured = os.environ.get("CONVOY_ROOT")
    if configured:
        return configured
    here = Path.cwd()
    folder = next((p / ".convoy" for p in (here, *here.parents) if (p / ".convoy").is_dir()), here / ".convoy")
    return str(folder)


def shipped_folder(kind: str) -> Path:
    """The folder `configs` or `flows` that comes with Convoy: a wheel's own (setup.py), or that of the repository."""
    package = Path(__file__).resolve().parents[1]
    wheel, repository = package / "shipped", package.parents[1]
    return (wheel if wheel.is_dir() else repository) / kind


def configs_folder() -> Path:
    """Where presets live: $CONVOY_CONFIGS, or else those that come with Convoy."""
    configured = os.environ.get("CONVOY_CONFIGS")
    return Path(configured) if configured else shipped_folder("configs")


def config_file(name: str, kind: str) -> Path:
    """The file of this name, or that of a preset of `configs/KIND/`. Raises ConfigError."""
    path, folder = Path(name), configs_folder() / kind
    if path.is_file():
        return path
    presets = sorted(preset.stem for preset in folder.glob("*.yaml"))
    if name not in presets:
        raise ConfigError(f"{name}: no such file, and no preset of {folder}; {name_hint(name, presets)}")
    return folder / f"{name}.yaml"


def expand_shorthands(tree: Tree) -> Tree:
    """The tree with a preset of a model, and an engine and its file, spelled out."""
    return expand_engine(expand_preset(tree))


def expand_engine(tree: Tree) -> Tree:
    """`engine: deepspeed`, or `engine: {deepspeed: SETTINGS}` with the settings or the path of a file that has them,
    as name and settings. Raises ConfigError for a file that cannot be read."""
    engine = tree.get("engine")
    if isinstance(engine, str):
        return {**tree, "engine": {"name": engine, "settings": {}}}
    named = [key for key in engine if key not in EngineConfig.model_fields] if isinstance(engine, dict) else []
    if not isinstance(engine, dict) or not named:
        return tree
    name = named[0]
    if name not in ENGINES or len(engine) > 1:
        choices = ", ".join(ENGINES)
        raise ConfigError(f"engine = {yaml_value(engine)}: must be one of {choices}, or one of these with its settings")
    settings = engine[name]
    if settings is not None and not isinstance(settings, dict | str):
        raise ConfigError(f"engine.{name} = {settings}: must be settings, or the path of a file that has them")
    if isinstance(settings, str):
        file = Path(settings)
        try:
            settings = read_tree(f"engine.{name} = {settings}", file.read_text())
        except OSError as error:
            raise ConfigError(f"engine.{name} = {settings}: {error.strerror or error}") from None
    return {**tree, "engine": {"name": name, "settings": {} if settings is None else settings}}


def expand_preset(tree: Tree) -> Tree:
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
    presets = sorted(p.stem for p in folder.glob("*.yaml"))
    if name not in presets:
        raise ConfigError(f"model = {name}: no such preset in {folder}; {name_hint(name, presets)}")
    file = folder / f"{name}.yaml"
    preset = {"name": name, **read_tree(str(file), file.read_text())}
    # In full, so that nothing of the model it is laid over shines through.
    return preset if "build" in preset else {**TransformerConfig().model_dump(mode="json"), **preset}


def read_tree(subject: str, text: str) -> Tree:
    """The tree that a YAML text holds; empty for an empty one. Raises ConfigError, which names `subject`."""
    try:
        tree = parse_yaml(text)
    except YamlError as error:
        raise ConfigError(f"{subject} is not YAML: {error}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{subject} must be a mapping of keys to values, not: {yaml_value(tree)}")
    return tree


def _parse_value(key: str, text: str) -> Any:
    try:
        return parse_yaml(text)
    except YamlError as error:
        raise ConfigError(
            f"{key} = {yaml_value(text)}: must be a YAML value ({error}); quote text with special signs"
        ) from None


def _nest_value(keys: Keys, value: Any) -> Tree:
    rest = value if len(keys) == 1 else _nest_value(keys[1:], value)
    return {keys[0]: rest}
