"""What is slower than in the benchmark before, as a message. Pure."""

from collections.abc import Sequence

from convoy.benchmark.results.compare import Comparison
from convoy.report.notifications.message import Message, lines_of, title_of

SHOWN = 5
"""The greatest losses that a message names."""


def regressions(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Those whose ratio lies below 1 with its whole interval, the greatest loss first."""
    slower = [(each.ratio.estimate, each) for each in comparisons if each.ratio is not None and each.ratio.high < 1]
    return [each for _, each in sorted(slower, key=lambda pair: pair[0])]


def regression_message(name: str, comparisons: Sequence[Comparison], command: str) -> Message | None:
    """None: nothing is slower. name: of the benchmark's results. command: measures again."""
    slower = regressions(comparisons)
    if not slower:
        return None
    more = f"; {len(slower) - SHOWN} more" if len(slower) > SHOWN else ""
    cause = "; ".join(_in_words(each) for each in slower[:SHOWN]) + more
    lines = [
        ("First cause", cause),
        ("Step", f"{len(slower)} of {len(comparisons)} compared rates are lower"),
        ("Cost so far", "not counted for a benchmark"),
        ("Continue", command),
    ]
    return Message(title_of("regressed", name), lines_of(lines))


def _in_words(slower: Comparison) -> str:
    assert slower.ratio is not None
    size = "" if slower.size is None else f" at {slower.size:,} bytes"
    ratio = slower.ratio
    return f"{slower.case}{size}: {ratio.estimate:.3f} ({ratio.low:.3f} to {ratio.high:.3f}) of the rate before"
