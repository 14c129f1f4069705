"""What a benchmark decides, in a few sentences at the top of its page."""

import math
from collections.abc import Sequence

from convoy.benchmark.analysis.report import BenchReport, CaseFigures, GroupFigures, Verdict, is_valid_training, verdict
from convoy.benchmark.pages.headline import hardware_of, main_case
from convoy.display import formatting
from convoy.display.page import Text
from convoy.stats.interval import Interval

_MAX_NAMES = 4
_NEGLIGIBLE = 0.01
"""Relative differences below this are not worth more rounds."""


def conclusions(report: BenchReport) -> tuple[Text, ...]:
    """At most five sentences: what is faster, what is slower, what is undecided and the rounds that would decide it,
    which strategy is faster, and what was refused. Empty where no case was measured."""
    main = main_case(report)
    if main is None:
        return ()
    group, _ = main
    strategies = [each for each in report.groups if each.suite == "strategies" and each is not group]
    sentences = [
        *_faster_sentence(group, f"For {group.model} on {hardware_of(group)}"),
        *_slower_sentence(group),
        *_undecided_sentence(group),
        *(_faster_sentence(strategies[0], "Among the strategies") if strategies else ()),
        *_refused_sentence(report),
    ]
    return (Text(" ".join(sentences)),) if sentences else ()


def rounds_to_decide(ratio: Interval) -> int | None:
    """Blocks with which the interval would exclude 1, if the estimate stays: an interval shrinks with the square root
    of its blocks. None: the estimate is too close to 1 to matter."""
    difference = abs(ratio.estimate - 1)
    if difference < _NEGLIGIBLE:
        return None
    reach = ratio.estimate - ratio.low if ratio.estimate > 1 else ratio.high - ratio.estimate
    return math.ceil(ratio.n * (reach / difference) ** 2)


def _faster_sentence(group: GroupFigures, opening: str) -> Sequence[str]:
    base, compared = _compared_cases(group)
    faster = _names_with_ratio(compared, "more")
    if not compared:
        return ()
    names = f"{_join_names(faster)} {'is' if len(faster) == 1 else 'are'}" if faster else "no other case is"
    return [f"{opening}, {names} faster than {base} beyond doubt."]


def _slower_sentence(group: GroupFigures) -> Sequence[str]:
    slower = _names_with_ratio(_compared_cases(group)[1], "less")
    return [f"Slower beyond doubt: {_join_names(slower)}."] if slower else ()


def _undecided_sentence(group: GroupFigures) -> Sequence[str]:
    _, compared = _compared_cases(group)
    undecided = {case.name: ratio for case, ratio in compared if verdict(ratio) == "no difference"}
    if not undecided:
        return ()
    needed = {name: n for name, ratio in undecided.items() if (n := rounds_to_decide(ratio)) is not None}
    blocks = formatting.plural(max(ratio.n for ratio in undecided.values()), "block")
    sentence = f"Undecided after {blocks}: {_join_names(list(undecided))}"
    if not needed:
        return [f"{sentence}, all within {100 * _NEGLIGIBLE:.0f} % of {_compared_cases(group)[0]}."]
    name, rounds = min(needed.items(), key=lambda each: each[1])
    return [f"{sentence}; measure.rounds of about {rounds:,} would decide {name}."]


def _refused_sentence(report: BenchReport) -> Sequence[str]:
    """The first case of each reason."""
    reasons = {
        case.reason: f"{case.name} ({group.suite})"
        for group in reversed(report.groups)
        for case in reversed(group.cases)
        if case.status in ("refused", "failed")
    }
    if not reasons:
        return ()
    first = "; ".join(f"{name}: {reason.rstrip('.')}" for reason, name in list(reasons.items())[::-1][:2])
    more = f"; {len(reasons) - 2} more below" if len(reasons) > 2 else ""
    return [f"Refused or failed: {first}{more}."]


def _compared_cases(group: GroupFigures) -> tuple[str, list[tuple[CaseFigures, Interval]]]:
    """The case that most others are compared with, and those, the fastest first."""
    base = next((case.name for case in group.cases if case.baseline is None), "")
    pairs = [
        (case, case.speedup)
        for case in group.cases
        if is_valid_training(case) and case.speedup is not None and case.baseline == base
    ]
    return base, sorted(pairs, key=lambda pair: -pair[1].estimate)


def _names_with_ratio(compared: Sequence[tuple[CaseFigures, Interval]], result: Verdict) -> list[str]:
    """`bf16 (1.68×)` of each case with that result."""
    return [
        f"{case.name} ({formatting.ratio(ratio).partition(' ')[0]})"
        for case, ratio in compared
        if verdict(ratio) == result
    ]


def _join_names(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    names = [*names[:_MAX_NAMES], *([f"{more} more"] if more > 0 else [])]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
