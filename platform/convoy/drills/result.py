"""What a drill tells: a row for each trial, and the figures over all of them. Seconds count from the injection."""

import math
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict, Field


class TrialResult(BaseModel):
    """One trial."""

    model_config = ConfigDict(frozen=True)

    ok: bool
    not_run: str | None = None
    """What this machine lacks for it; then the trial is neither ok nor failed."""
    reason: str = ""
    """Why it is not ok."""
    detected_s: float | None = None
    """Until the gang's log tells of the fault."""
    recovered_s: float | None = None
    """Until the first step was done in a new generation."""
    beyond_s: float | None = None
    """Until the first step past the last one that was done before."""
    steps_recomputed: int | None = None
    samples_lost: int | None = None
    """Of the steps that the final state stands on."""
    samples_repeated: int | None = None
    final_state_equal: bool | None = None
    """To the undisturbed run's, bit for bit; None: not compared."""
    target_detected_s: float | None = Field(None, exclude=True)
    """What the median is to keep to, which of a hang depends on the steps before it; None: no figure is asked for."""
    target_recovered_s: float | None = Field(None, exclude=True)


class Percentiles(BaseModel):
    """Of the trials that have the figure; None: none has."""

    model_config = ConfigDict(frozen=True)

    p50: float | None = None
    p90: float | None = None
    max: float | None = None


class Summary(BaseModel):
    """Over the trials that were run."""

    model_config = ConfigDict(frozen=True)

    n: int
    ok: int
    detected_s: Percentiles
    recovered_s: Percentiles


class DrillResult(BaseModel):
    """All trials of a drill."""

    model_config = ConfigDict(frozen=True)

    drill: str
    trials: list[TrialResult]
    summary: Summary

    @property
    def failed(self) -> bool:
        """Some trial was run and is not ok."""
        return any(not trial.ok and trial.not_run is None for trial in self.trials)


def result_of(drill: str, trials: Sequence[TrialResult]) -> DrillResult:
    run = [trial for trial in trials if trial.not_run is None]
    summary = Summary(
        n=len(run),
        ok=sum(trial.ok for trial in run),
        detected_s=percentiles(trial.detected_s for trial in run),
        recovered_s=percentiles(trial.recovered_s for trial in run),
    )
    return DrillResult(drill=drill, trials=list(trials), summary=summary)


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """Nearest rank: each one is a value that was measured."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return Percentiles()
    return Percentiles(p50=_rank(known, 0.5), p90=_rank(known, 0.9), max=known[-1])


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
