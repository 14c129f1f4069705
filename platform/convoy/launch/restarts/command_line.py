"""The words of a flow's command line, as Metaflow takes them: its own options, `run`, and the run's options. Pure."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

RUN = "run"

CONFIGS = ("--config", "--config-value")
CONFIG_VARIABLES = ("METAFLOW_FLOW_CONFIG", "METAFLOW_FLOW_CONFIG_VALUE")
"""What Metaflow takes instead of these options."""


def around_run(words: Sequence[str], values: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """The words before the command `run` and those after it; without a `run`, all stand before it.

    values: of each of Metaflow's options, how many words follow it: of `--config run FILE` it takes two.
    """
    before = [word for option in _options(words, values) for word in option]
    return before, list(words[len(before) + 1 :])


def with_files(words: Sequence[str], config: str, file_of: Callable[[str], Path]) -> list[str]:
    """The words, in which `--config CONFIG` is followed by a file. file_of: of what a user may write there."""
    replaced = list(words)
    for place in range(len(words) - 2):
        if words[place : place + 2] == ["--config", config]:
            replaced[place + 2] = str(file_of(words[place + 2]))
    return replaced


def command_line(words: Sequence[str], values: Mapping[str, int], environ: Mapping[str, str]) -> str:
    """A line for a shell that starts the same with the same configuration.

    words: from the flow's file on. values: as in `around_run`. No other words are passed: options such as
    `--metadata` and `--tag` change nothing of what a flow does, and may name what is nobody else's business.
    """
    variables = [f"{name}={environ[name]}" for name in CONFIG_VARIABLES if name in environ]
    file, *others = words
    configs = [word for option in _options(others, values) if option[0].partition("=")[0] in CONFIGS for word in option]
    return shlex.join([*(["env", *variables] if variables else []), "python", file, *configs, RUN])


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


def values_of_options() -> dict[str, int]:
    """How many words follow each option."""
    from metaflow.cli import start

    counts = {}
    for option in start.params:
        flag = getattr(option, "is_flag", False) or getattr(option, "count", False)
        for name in (*option.opts, *option.secondary_opts):
            counts[name] = 0 if flag else option.nargs
    # Which it adds to a flow that has any: NAME and FILE, NAME and VALUE.
    return {**counts, **dict.fromkeys(CONFIGS, 2)}
