"""Cases and earlier runs of the same fingerprint: where they changed, and what would not have shown. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from convoy.benchmark.analysis.report import HistoryFigures, HistoryRun
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.figures import tokens_per_second
from convoy.benchmark.results.fingerprint import fingerprint
from convoy.stats.changepoint import change_points, detectable_change

PastRates = Mapping[str, Sequence[tuple[datetime, float]]]
"""When runs were measured and their tokens per second, by fingerprint and group: a reference that several gangs
of a run have is one run in the history of each."""


def rates_by_fingerprint(cases: Iterable[Case]) -> PastRates:
    """The cases of earlier benchmarks that have a rate."""
    runs: dict[str, list[tuple[datetime, float]]] = {}
    for case in cases:
        rate = tokens_per_second(case) if case.status == "measured" else None
        if rate is not None and rate.estimate > 0:
            runs.setdefault(f"{fingerprint(case)} {case.group}", []).append((case.provenance.measured, rate.estimate))
    return runs


def history_figures(cases: Sequence[Case], past_rates: PastRates) -> tuple[HistoryFigures, ...]:
    """One for each case that was measured, whose own run lies where its date puts it."""
    histories = []
    for case in cases:
        for key, own in rates_by_fingerprint([case]).items():
            runs = sorted({*past_rates.get(key, ()), *own})
            rates = [rate for _, rate in runs]
            histories.append(
                HistoryFigures(
                    case=case.key,
                    runs=tuple(HistoryRun(measured=measured, tokens_per_second=rate) for measured, rate in runs),
                    changes=tuple(change_points(rates)),
                    detectable=detectable_change(rates),
                )
            )
    return tuple(histories)
