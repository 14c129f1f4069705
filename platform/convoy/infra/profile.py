"""Metaflow's settings: profiles, which are JSON files in its folder, and environment variables, which take
precedence. Metaflow itself is not asked: it reads its settings once, and its command overwrites profiles."""

import json
from collections.abc import Mapping
from pathlib import Path

from convoy.config.errors import ConfigError, yaml_value
from convoy.config.json_text import parse_json

PREFIX = "METAFLOW_"


def profile_path(profile: str | None, environ: Mapping[str, str]) -> Path:
    """profile: None is the default one."""
    folder = Path(environ.get("METAFLOW_HOME", "~/.metaflowconfig")).expanduser()
    return folder / (f"config_{profile}.json" if profile else "config.json")


def read_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings, by their names without `METAFLOW_`. Raises ConfigError for a profile that does not exist, or is no
    JSON."""
    named = environ.get("METAFLOW_PROFILE")
    path = profile_path(named, environ)
    stored = _read(path)
    if stored is None and named:
        raise ConfigError(f"METAFLOW_PROFILE = {named}: no file {path}; `convoy infra connect` writes it")
    return settings_with(stored or {}, environ)


def settings_with(profile: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The settings that this profile and these environment variables make."""
    variables = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    return {name.removeprefix(PREFIX): str(value) for name, value in {**profile, **variables}.items()}


def check_profile(path: Path, content: Mapping[str, str], stack: str) -> None:
    """Raises ConfigError, with what differs, if the profile exists with other content."""
    stored = _read(path)
    if stored is None or stored == content:
        return
    differences = [
        f"{name} = {yaml_value(stored[name]) if name in stored else 'not set'}, "
        f"not {yaml_value(content[name]) if name in content else 'set'} in the stack"
        for name in sorted({*stored, *content})
        if stored.get(name) != content.get(name)
    ]
    raise ConfigError(f"{path}: has other content than the stack {stack}: {'; '.join(differences)}; move it away")


def write_profile(path: Path, content: Mapping[str, str]) -> None:
    """Raises ConfigError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict(content), indent=4, sort_keys=True) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def _read(path: Path) -> dict[str, str] | None:
    """None: there is no such file."""
    try:
        content = parse_json(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be an object of settings")
    return content
