"""The words of a flow's command line, as Metaflow takes them: its own options, `run`, and the run's options. Pure."""

from collections.abc import Mapping, Sequence

RUN = "run"


def around_run(words: Sequence[str], values: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """The words before the command `run` and those after it; without a `run`, all stand before it.

    values: of each of Metaflow's options, how many words follow it: of `--config run FILE` it takes two.
    """
    place = 0
    while place < len(words):
        word = words[place]
        if word == RUN:
            return list(words[:place]), list(words[place + 1 :])
        option, equals, _ = word.partition("=")
        place += 1 + max(values.get(option, 0) - bool(equals), 0)
    return list(words), []


def job_words(words: Sequence[str]) -> list[str]:
    """Those that name a job already."""
    named = [f"{word} {following}" for word, following in zip(words, [*words, ""][1:], strict=True) if word == "--job"]
    tags = [w for w in words if w.removeprefix("--tag=").startswith("job:")]
    return [*named, *(w for w in words if w.startswith("--job=")), *tags]
