"""Two runs of the same case, one later than the other. Pure."""

from collections.abc import Sequence

from convoy.benchmark.results.case import Case, FrozenResult
from convoy.benchmark.results.figures import block_rates, tokens_per_second
from convoy.benchmark.results.fingerprint import differences
from convoy.stats.interval import Interval, unpaired_ratio


class Comparison(FrozenResult):
    """One case in both."""

    case: str
    first: Interval | None
    """Tokens per second; None: too few blocks, or not measured."""
    second: Interval | None
    ratio: Interval | None
    """Second over first, as of two samples: they were measured apart."""
    reason: str = ""
    """Why there is no ratio."""

    @property
    def differs(self) -> bool:
        """Whether the interval leaves 1 out."""
        return self.ratio is not None and not self.ratio.low <= 1 <= self.ratio.high


class Comparisons(FrozenResult):
    """Two files, or two folders of them."""

    cases: tuple[Comparison, ...]
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()


class OtherFingerprintError(Exception):
    """Runs that may not be compared; `lines` say why."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = tuple(lines)


def compare(first: Case, second: Case) -> Comparison:
    """Raises OtherFingerprintError."""
    if lines := differences(first, second):
        raise OtherFingerprintError(lines)
    reasons = {"first": _why_no_rate(first), "second": _why_no_rate(second)}
    reason = next((f"{which}: {why}" for which, why in reasons.items() if why), "")
    return Comparison(
        case=second.key,
        first=_rate(first),
        second=_rate(second),
        ratio=None if reason else unpaired_ratio(block_rates(second), block_rates(first)),
        reason=reason,
    )


def compare_all(first: Sequence[Case], second: Sequence[Case]) -> Comparisons:
    """Cases of the same key; those that only one side has are named. Raises OtherFingerprintError with each difference
    once, and how many cases have it."""
    ones, others = {case.key: case for case in first}, {case.key: case for case in second}
    both = [key for key in ones if key in others]
    lines = [line for key in both for line in differences(ones[key], others[key])]
    if lines:
        raise OtherFingerprintError(
            [f"{line} ({lines.count(line)} of {len(both)} cases)" for line in dict.fromkeys(lines)]
        )
    return Comparisons(
        cases=tuple(compare(ones[key], others[key]) for key in both),
        only_first=tuple(key for key in ones if key not in others),
        only_second=tuple(key for key in others if key not in ones),
    )


def _rate(case: Case) -> Interval | None:
    return None if _why_no_rate(case) else tokens_per_second(case)


def _why_no_rate(case: Case) -> str:
    """Why it has no rate to compare; empty: it has one."""
    if case.status != "measured":
        return f"{case.status}: {case.reason}"
    if tokens_per_second(case) is None:
        return f"{len(case.blocks)} blocks are too few"
    return "" if case.tokens_per_step else "no tokens"
