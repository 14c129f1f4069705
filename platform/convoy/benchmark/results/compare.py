"""Two runs of the same case, one later than the other. Pure."""

from collections.abc import Sequence

from convoy.benchmark.results.case import Case, FrozenResult
from convoy.benchmark.results.figures import rate_intervals, rates_by_size
from convoy.benchmark.results.fingerprint import differences
from convoy.stats.interval import FEWEST, Interval, unpaired_ratio


class Comparison(FrozenResult):
    """One case in both."""

    case: str
    size: int | None = None
    """Bytes, of a case that was measured by size; None: its rate is of tokens."""
    first: Interval | None
    """Tokens per second, or bytes per second of the size; None: too few blocks, or not measured."""
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


def compare(first: Case, second: Case) -> tuple[Comparison, ...]:
    """One comparison, or one for each size of cases that were measured by size. Raises OtherFingerprintError."""
    if lines := differences(first, second):
        raise OtherFingerprintError(lines)
    sizes = list(dict.fromkeys([*rates_by_size(first), *rates_by_size(second)]))
    if None in sizes or not sizes:
        sizes = [None]
    return tuple(_compare_rates(first, second, size) for size in sorted(sizes, key=lambda size: size or 0))


def _compare_rates(first: Case, second: Case, size: int | None) -> Comparison:
    reasons = {"first": _why_no_rate(first, size), "second": _why_no_rate(second, size)}
    reason = next((f"{which}: {why}" for which, why in reasons.items() if why), "")
    return Comparison(
        case=second.key,
        size=size,
        first=None if reasons["first"] else rate_intervals(first)[size],
        second=None if reasons["second"] else rate_intervals(second)[size],
        ratio=None if reason else unpaired_ratio(rates_by_size(second)[size], rates_by_size(first)[size]),
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
        cases=tuple(each for key in both for each in compare(ones[key], others[key])),
        only_first=tuple(key for key in ones if key not in others),
        only_second=tuple(key for key in others if key not in ones),
    )


def _why_no_rate(case: Case, size: int | None) -> str:
    """Why it has no rate to compare; empty: it has one."""
    if case.status != "measured":
        return f"{case.status}: {case.reason}"
    rates = rates_by_size(case).get(size)
    if rates is None:
        return "no tokens" if size is None else "not measured at this size"
    return "" if len(rates) >= FEWEST else f"{len(rates)} blocks are too few"
