"""What was predicted of a benchmark's cases before they ran, beside what was measured of them. Pure."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Literal

from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.figures import step_seconds
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.report.train_report import Fact

Quantity = Literal["step time", "memory peak", "checkpoint"]


class Paired(Fact):
    """A figure of a case: in seconds of a step, or in bytes."""

    suite: str
    group: str
    case: str
    what: Quantity
    predicted: float
    measured: float
    """Of a step the median over blocks."""
    error: float
    """Of the prediction, as a share of what was measured: positive where more was predicted."""


class Summary(Fact):
    """Over all figures of a kind."""

    what: Quantity
    n: int
    median: float
    """Of the errors' sizes."""
    worst: float
    """The error that is largest, with its sign."""


class NotPredicted(Fact):
    """Measured, but nothing was said of it before."""

    what: Quantity
    why: str
    cases: tuple[str, ...]
    """With their suites."""


class PredictedFigures(Fact):
    """Of all cases that something was predicted of."""

    pairs: tuple[Paired, ...]
    summaries: tuple[Summary, ...]
    not_predicted: tuple[NotPredicted, ...]
    machines: tuple[MeasuredMachine, ...]
    """That times of steps were predicted from: all that gangs measured. None: the catalog's figures."""
    calibrations: tuple[str, ...]
    """Of these times: date and data of the constants."""


def predicted(cases: Sequence[Case]) -> PredictedFigures | None:
    """None where nothing was predicted, as in results of earlier versions."""
    told = [case for case in cases if case.status == "measured" and case.predicted is not None]
    pairs = [pair for case in told for pair in _pairs(case)]
    if not pairs:
        return None
    timed = [case.predicted for case in told if case.predicted is not None and case.predicted.step_seconds is not None]
    return PredictedFigures(
        pairs=tuple(pairs),
        summaries=tuple(_summaries(pairs)),
        not_predicted=tuple(_not_predicted(told)),
        machines=tuple(dict.fromkeys(each.machine for each in timed if each.machine is not None)),
        calibrations=tuple(dict.fromkeys(each.calibration for each in timed)),
    )


def _pairs(case: Case) -> Iterator[Paired]:
    """Of what was both predicted and measured."""
    told, took = case.predicted, step_seconds(case)
    assert told is not None
    if told.step_seconds is not None and took is not None:
        yield _pair(case, "step time", told.step_seconds, took.estimate)
    if told.peak_bytes is not None and case.memory_peak_bytes:
        yield _pair(case, "memory peak", told.peak_bytes, case.memory_peak_bytes)
    saved = case.values.get(values.SAVED_BYTES)
    if told.saved_bytes is not None and saved:
        yield _pair(case, "checkpoint", told.saved_bytes, saved)


def _pair(case: Case, what: Quantity, said: float, measured: float) -> Paired:
    return Paired(
        suite=case.suite,
        group=case.group,
        case=case.name,
        what=what,
        predicted=said,
        measured=measured,
        error=said / measured - 1,
    )


def _summaries(pairs: Sequence[Paired]) -> Iterator[Summary]:
    kinds: tuple[Quantity, ...] = ("step time", "memory peak", "checkpoint")
    for what in kinds:
        errors = [pair.error for pair in pairs if pair.what == what]
        if errors:
            sizes = [abs(error) for error in errors]
            yield Summary(what=what, n=len(errors), median=statistics.median(sizes), worst=max(errors, key=abs))


def _not_predicted(cases: Sequence[Case]) -> Iterator[NotPredicted]:
    """Each reason once."""
    found: dict[tuple[Quantity, str], list[str]] = {}
    for case in cases:
        told = case.predicted
        assert told is not None
        if told.why_no_step and case.blocks:
            found.setdefault(("step time", told.why_no_step), []).append(f"{case.name} ({case.suite})")
        if told.why_no_peak and case.memory_peak_bytes:
            found.setdefault(("memory peak", told.why_no_peak), []).append(f"{case.name} ({case.suite})")
    for (what, why), names in sorted(found.items(), key=lambda each: each[0][0], reverse=True):
        yield NotPredicted(what=what, why=why, cases=tuple(names))
