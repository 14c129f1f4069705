"""Cases and earlier runs of the same fingerprint: where they changed, and what would not have shown. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from convoy.benchmark.analysis.report import HistoryFigures, HistoryRun
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.figures import rate_intervals
from convoy.benchmark.results.fingerprint import fingerprint
from convoy.stats.changepoint import change_points, detectable_change

PastRates = Mapping[str, Sequence[tuple[datetime, float]]]
"""When runs were measured and their tokens per second, by fingerprint and group, or bytes per second, by these and the
size: a reference that several gangs of a run have is one run in the history of each."""


def rates_by_fingerprint(cases: Iterable[Case]) -> PastRates:
    """The cases of earlier benchmarks that have a rate."""
    runs: dict[str, list[tuple[datetime, float]]] = {}
    for case in cases:
        for size, rate in rate_intervals(case).items():
            if rate.estimate > 0:
                runs.setdefault(_key(case, size), []).append((case.provenance.measured, rate.estimate))
    return runs


def _key(case: Case, size: int | None) -> str:
    key = f"{fingerprint(case)} {case.group}"
    return key if size is None else f"{key} {size}"


def history_figures(cases: Sequence[Case], past_rates: PastRates) -> tuple[HistoryFigures, ...]:
    """One for each case that was measured, or for each of its sizes. Its own run lies where its date puts it."""
    histories = []
    for case in cases:
        own = rates_by_fingerprint([case])
        for size in rate_intervals(case):
            key = _key(case, size)
            if key not in own:
                continue
            runs = sorted({*past_rates.get(key, ()), *own[key]})
            rates = [rate for _, rate in runs]
            histories.append(
                HistoryFigures(
                    case=case.key,
                    size=size,
                    runs=tuple(_run(measured, rate, size) for measured, rate in runs),
                    changes=tuple(change_points(rates)),
                    detectable=detectable_change(rates),
                )
            )
    return tuple(histories)


def _run(measured: datetime, rate: float, size: int | None) -> HistoryRun:
    if size is None:
        return HistoryRun(measured=measured, tokens_per_second=rate)
    return HistoryRun(measured=measured, bytes_per_second=rate)
