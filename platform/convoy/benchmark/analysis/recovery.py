"""The figures of drills. Pure."""

from collections.abc import Sequence
from typing import Any

from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case, FrozenResult
from convoy.benchmark.results.values import BEYOND, DETECTED, RECOVERED, SampleMedian, sample_median_of
from convoy.stats.interval import Interval, proportion

SUITE = "recovery"


class DrillFigures(FrozenResult):
    """All trials of one drill. Seconds count from the fault; counts and targets have the names of `Case.values`."""

    drill: str
    nodes: int
    """Nodes of its gang, which are processes of one host."""
    trials: int
    recovered_trials: int
    """Trials that recovered with nothing lost, repeated or left behind."""
    recovery_rate: Interval
    """Share of trials, with Wilson's interval."""
    detected: SampleMedian | None
    recovered: SampleMedian | None
    beyond: SampleMedian | None
    target_detected_seconds: float | None
    """Limit of the median; None: there is none."""
    target_recovered_seconds: float | None
    steps_recomputed: int
    samples_lost: int
    samples_repeated: int
    states_equal: int
    states_compared: int
    reason: str
    """Failure of a trial, if one failed."""


def drill_figures(cases: Sequence[Case]) -> tuple[DrillFigures, ...]:
    """Those that were run."""
    own = [case for case in cases if case.suite == SUITE and case.status == "measured"]
    return tuple(_figures(case) for case in own if case.values.get(values.TRIALS))


def _figures(case: Case) -> DrillFigures:
    counts = {name: int(case.values.get(name, 0)) for name in values.OF_RECOVERY - values.TARGETS}
    targets: dict[str, Any] = {name: case.values.get(name) for name in values.TARGETS}
    return DrillFigures(
        drill=case.name,
        nodes=case.hardware.ranks,
        recovery_rate=proportion(counts[values.RECOVERED_TRIALS], counts[values.TRIALS]),
        detected=sample_median_of(case, DETECTED),
        recovered=sample_median_of(case, RECOVERED),
        beyond=sample_median_of(case, BEYOND),
        reason=case.reason,
        **counts,
        **targets,
    )
