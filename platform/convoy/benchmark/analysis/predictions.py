"""What was predicted of a benchmark's cases before they ran, and what was measured of them. Pure."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Literal

from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case, FrozenResult
from convoy.benchmark.results.figures import step_seconds
from convoy.catalog.measured_machine import MeasuredMachine

Quantity = Literal["step time", "memory peak", "checkpoint"]


class PredictionPair(FrozenResult):
    """A figure of a case, predicted and measured: seconds of a step, or bytes."""

    suite: str
    group: str
    case: str
    what: Quantity
    predicted: float
    measured: float
    """For a step the median over blocks."""
    error: float
    """Prediction over measurement, minus 1: positive where more was predicted."""


class ErrorSummary(FrozenResult):
    """Over all figures of a kind."""

    what: Quantity
    n: int
    median: float
    """Median of the absolute errors."""
    worst: float
    """The error that is largest, with its sign."""


class NotPredicted(FrozenResult):
    """Measured, but not predicted."""

    what: Quantity
    why: str
    cases: tuple[str, ...]
    """Names, each with its suite."""


class PredictedFigures(FrozenResult):
    """All cases of which something was predicted."""

    pairs: tuple[PredictionPair, ...]
    summaries: tuple[ErrorSummary, ...]
    not_predicted: tuple[NotPredicted, ...]
    machines: tuple[MeasuredMachine, ...]
    """As gangs measured them, from which times of steps were predicted; empty: the catalog's figures were."""
    calibrations: tuple[str, ...]
    """Date and data of the constants behind these times."""


def prediction_figures(cases: Sequence[Case]) -> PredictedFigures | None:
    """None where nothing was predicted, as in results of earlier versions."""
    measured = [case for case in cases if case.status == "measured" and case.predicted is not None]
    pairs = [pair for case in measured for pair in _pairs(case)]
    if not pairs:
        return None
    timed = [each for case in measured if (each := case.predicted) is not None and each.step_seconds is not None]
    return PredictedFigures(
        pairs=tuple(pairs),
        summaries=tuple(_summaries(pairs)),
        not_predicted=tuple(_not_predicted(measured)),
        machines=tuple(dict.fromkeys(each.machine for each in timed if each.machine is not None)),
        calibrations=tuple(dict.fromkeys(each.calibration for each in timed)),
    )


def _pairs(case: Case) -> Iterator[PredictionPair]:
    """Figures that were both predicted and measured."""
    plan, seconds = case.predicted, step_seconds(case)
    assert plan is not None
    figures: tuple[tuple[Quantity, float | None, float | None], ...] = (
        ("step time", plan.step_seconds, seconds.estimate if seconds else None),
        ("memory peak", plan.peak_bytes, case.memory_peak_bytes),
        ("checkpoint", plan.saved_bytes, case.values.get(values.SAVED_BYTES)),
    )
    for what, expected, measured in figures:
        if expected is not None and measured:
            yield PredictionPair(
                suite=case.suite,
                group=case.group,
                case=case.name,
                what=what,
                predicted=expected,
                measured=measured,
                error=expected / measured - 1,
            )


def _summaries(pairs: Sequence[PredictionPair]) -> Iterator[ErrorSummary]:
    kinds: tuple[Quantity, ...] = ("step time", "memory peak", "checkpoint")
    for what in kinds:
        errors = [pair.error for pair in pairs if pair.what == what]
        if errors:
            sizes = [abs(error) for error in errors]
            yield ErrorSummary(what=what, n=len(errors), median=statistics.median(sizes), worst=max(errors, key=abs))


def _not_predicted(cases: Sequence[Case]) -> Iterator[NotPredicted]:
    """Each reason once."""
    cases_of: dict[tuple[Quantity, str], list[str]] = {}
    for case in cases:
        plan = case.predicted
        assert plan is not None
        if plan.why_no_step and case.blocks:
            cases_of.setdefault(("step time", plan.why_no_step), []).append(f"{case.name} ({case.suite})")
        if plan.why_no_peak and case.memory_peak_bytes:
            cases_of.setdefault(("memory peak", plan.why_no_peak), []).append(f"{case.name} ({case.suite})")
    for (what, why), names in sorted(cases_of.items(), key=lambda each: each[0][0], reverse=True):
        yield NotPredicted(what=what, why=why, cases=tuple(names))
