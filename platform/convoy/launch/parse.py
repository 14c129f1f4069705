"""Metaflow Config parsers: what can be said of a configuration before the flow exists is said here, in one line."""

import json
import shlex
import sys
from typing import Any, NoReturn

from pydantic import ValidationError

from convoy.config.errors import ConfigError, one_line
from convoy.config.json_text import parse_json
from convoy.config.loader import config_file, merged, read_overrides, read_run
from convoy.config.run import RunConfig
from convoy.launch.restarts.command_line import with_files

_MAY_BE_MENDED = ("missing", "value_error")
"""The other part may give a missing key, or change one of two values that do not agree."""


_CHOICES = (("data", "corpus"), ("data", "tokenizer"), ("model",))
"""Which keys these have depends on the class that the other part chooses."""


def parse_run(text: str) -> dict[str, Any]:
    """The base configuration, presets filled in, as plain JSON. Ends the process with exit code 2 if it is bad."""
    return _checked(read_run, text)


def parse_overrides(text: str) -> dict[str, Any]:
    """`key=value` words as a tree of plain JSON. Ends the process with exit code 2 if it is bad.

    A JSON object, with dotted or nested keys, does as well: Metaflow's Runner takes nothing else as a Config's value.
    """
    return _checked(read_overrides, _words(text) if text.lstrip().startswith("{") else text)


def _words(text: str) -> str:
    try:
        pairs = parse_json(text).items()
    except ValueError:
        return text
    return " ".join(shlex.quote(f"{key}={json.dumps(value)}") for key, value in pairs)


def parse_bench(text: str) -> dict[str, Any]:
    """The configuration of a benchmark as plain JSON. Ends the process with exit code 2 if it is not YAML."""
    from convoy.config.benchmark import read_bench

    try:
        return read_bench(text)
    except ConfigError as error:
        say_and_exit(error)


def parse_bench_overrides(text: str) -> dict[str, Any]:
    """`key=value` words for a benchmark, as `parse_overrides` takes them."""
    from convoy.config.benchmark import with_presets

    try:
        return with_presets(read_overrides(_words(text) if text.lstrip().startswith("{") else text))
    except ConfigError as error:
        say_and_exit(error)


def accept_presets(config: str, kind: str) -> None:
    """Have `--config CONFIG NAME` of this process take a preset of `configs/KIND/` too. Metaflow reads a file before it
    calls any parser, so this is to be called before it reads the command line. Ends the process with exit code 2 if
    there is neither."""
    try:
        sys.argv[:] = with_files(sys.argv, config, lambda name: config_file(name, kind))
    except ConfigError as error:
        say_and_exit(ConfigError(f"--config {config} {error}"))


def say_and_exit(error: ConfigError) -> NoReturn:
    """One line on stderr, exit code 2: nothing has started."""
    print(f"convoy: {error}", file=sys.stderr)
    raise SystemExit(2)


def _checked(read: Any, text: str) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = read(text)
        _check_keys(tree)
    except ConfigError as error:
        say_and_exit(error)
    return tree


def _check_keys(tree: dict[str, Any]) -> None:
    """Raise ConfigError for what no other part of the configuration can make right."""
    try:
        RunConfig.model_validate(merged(RunConfig().model_dump(mode="json"), tree))
    except ValidationError as error:
        if any(_is_wrong_alone(problem["type"], problem["loc"]) for problem in error.errors()):
            raise ConfigError(one_line(error, RunConfig)) from None


def _is_wrong_alone(kind: str, location: tuple[int | str, ...]) -> bool:
    return kind not in _MAY_BE_MENDED and not any(location[: len(choice)] == choice for choice in _CHOICES)
