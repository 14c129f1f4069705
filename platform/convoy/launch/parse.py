"""What the command line of a flow says: Metaflow Config parsers, which report in one line what can be said of a
configuration before the flow exists, and the words themselves: Metaflow's own options, `run`, and the run's options."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from convoy.config.errors import ConfigError, first_problem_line
from convoy.config.json_text import parse_json
from convoy.config.loader import config_file, merge_config, read_overrides, read_run
from convoy.config.run import RunConfig

_MAY_BE_MENDED = ("missing", "value_error")
"""The other part may give a missing key, or change one of two values that do not agree."""


_CHOICES = (("data", "corpus"), ("data", "tokenizer"), ("model",))
"""Which keys these have depends on the class that the other part chooses."""


def parse_run(text: str) -> dict[str, Any]:
    """The base configuration, presets filled in, as plain JSON. Ends the process with exit code 2 if it is bad."""
    return _read_or_exit(lambda: _check_tree(read_run(text)))


def parse_overrides(text: str) -> dict[str, Any]:
    """`key=value` words as a tree of plain JSON. Ends the process with exit code 2 if it is bad.

    A JSON object, with dotted or nested keys, does as well: Metaflow's Runner takes nothing else as a Config's value.
    """
    return _read_or_exit(lambda: _check_tree(read_overrides(_overrides_as_words(text))))


def parse_bench(text: str) -> dict[str, Any]:
    """The configuration of a benchmark as plain JSON. Ends the process with exit code 2 if it is not YAML."""
    from convoy.config.benchmark import read_bench

    return _read_or_exit(lambda: read_bench(text))


def parse_bench_overrides(text: str) -> dict[str, Any]:
    """`key=value` words for a benchmark, as `parse_overrides` takes them."""
    from convoy.config.benchmark import add_presets_key

    return _read_or_exit(lambda: add_presets_key(read_overrides(_overrides_as_words(text))))


def _overrides_as_words(text: str) -> str:
    if not text.lstrip().startswith("{"):
        return text
    try:
        pairs = parse_json(text).items()
    except ValueError:
        return text
    return " ".join(shlex.quote(f"{key}={json.dumps(value)}") for key, value in pairs)


def expand_argv_presets(config: str, kind: str) -> None:
    """Have `--config CONFIG NAME` of this process take a preset of `configs/KIND/` too. Metaflow reads a file before it
    calls any parser, so this is to be called before it reads the command line. Ends the process with exit code 2 if
    there is neither."""
    try:
        sys.argv[:] = presets_to_files(sys.argv, config, lambda name: config_file(name, kind))
    except ConfigError as error:
        print_and_exit(ConfigError(f"--config {config} {error}"))


def print_and_exit(error: ConfigError) -> NoReturn:
    """One line on stderr, exit code 2: nothing has started."""
    print(f"convoy: {error}", file=sys.stderr)
    raise SystemExit(2)


def _read_or_exit(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return read()
    except ConfigError as error:
        print_and_exit(error)


def _check_tree(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree. Raises ConfigError for what no other part of the configuration can make right."""
    try:
        RunConfig.model_validate(merge_config(RunConfig().model_dump(mode="json"), tree))
    except ValidationError as error:
        if any(_is_wrong_anyway(problem["type"], problem["loc"]) for problem in error.errors()):
            raise ConfigError(first_problem_line(error, RunConfig)) from None
    return tree


def _is_wrong_anyway(kind: str, location: tuple[int | str, ...]) -> bool:
    return kind not in _MAY_BE_MENDED and not any(location[: len(choice)] == choice for choice in _CHOICES)


RUN = "run"

CONFIGS = ("--config", "--config-value")
CONFIG_VARIABLES = ("METAFLOW_FLOW_CONFIG", "METAFLOW_FLOW_CONFIG_VALUE")
"""What Metaflow takes instead of these options."""


def words_around_run(words: Sequence[str], values: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """The words before the command `run` and those after it; without a `run`, all stand before it.

    values: of each of Metaflow's options, how many words follow it: of `--config run FILE` it takes two.
    """
    before = [word for option in _options(words, values) for word in option]
    return before, list(words[len(before) + 1 :])


def presets_to_files(words: Sequence[str], config: str, file_of: Callable[[str], Path]) -> list[str]:
    """The words, in which `--config CONFIG` is followed by a file. file_of: of what a user may write there."""
    replaced = list(words)
    for place in range(len(words) - 2):
        if words[place : place + 2] == ["--config", config]:
            replaced[place + 2] = str(file_of(words[place + 2]))
    return replaced


def same_command(words: Sequence[str], values: Mapping[str, int], environ: Mapping[str, str]) -> str:
    """A line for a shell that starts the same with the same configuration.

    words: from the flow's file on. values: as in `words_around_run`. No other words are passed: options such as
    `--metadata` and `--tag` change nothing of what a flow does, and may name what is nobody else's business.
    """
    variables = [f"{name}={environ[name]}" for name in CONFIG_VARIABLES if name in environ]
    file, *others = words
    configs = [word for option in _options(others, values) if option[0].partition("=")[0] in CONFIGS for word in option]
    return shlex.join([*(["env", *variables] if variables else []), "python", file, *configs, RUN])


CONTINUE = "CONVOY_CONTINUE_COMMAND"
"""Variable by which the process that starts a run passes to the tasks on this host what continues its job: `convoy run`
as it was typed, or the flow's command, to which a task adds `--job NAME`."""


def continue_command(job: str, environ: Mapping[str, str], flow: str) -> str:
    """What a person types to continue the job, as far as a task knows the command that began it. flow: its file."""
    command = environ.get(CONTINUE)
    if command is None:
        return shlex.join(["python", flow, RUN, "--tag", f"job:{job}"])
    return command if command.startswith("convoy ") else f"{command} --job {shlex.quote(job)}"


def job_words(words: Sequence[str]) -> list[str]:
    """Those that name a job already."""
    named = [f"{word} {following}" for word, following in zip(words, [*words, ""][1:], strict=True) if word == "--job"]
    tags = [w for w in words if w.removeprefix("--tag=").startswith("job:")]
    return [*named, *(w for w in words if w.startswith("--job=")), *tags]


def _options(words: Sequence[str], values: Mapping[str, int]) -> Iterator[list[str]]:
    """Each with the words that follow it, up to the command `run`."""
    place = 0
    while place < len(words) and words[place] != RUN:
        option, equals, _ = words[place].partition("=")
        after = place + 1 + max(values.get(option, 0) - bool(equals), 0)
        yield list(words[place:after])
        place = after


def option_word_counts() -> dict[str, int]:
    """How many words follow each option."""
    from metaflow.cli import start

    counts = {}
    for option in start.params:
        flag = getattr(option, "is_flag", False) or getattr(option, "count", False)
        for name in (*option.opts, *option.secondary_opts):
            counts[name] = 0 if flag else option.nargs
    # Which it adds to a flow that has any: NAME and FILE, NAME and VALUE.
    return {**counts, **dict.fromkeys(CONFIGS, 2)}
