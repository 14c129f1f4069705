"""The results of drills: a row per trial, the figures over all trials, and a table of them against the targets.

Seconds count from the injection. In the table they are the median and the longest of all trials.
"""

import math
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict, Field
from rich.table import Table

from convoy.drills.fault import Fault
from convoy.drills.faults import drill_named
from convoy.drills.observe import SLACK


class TrialResult(BaseModel):
    """One trial."""

    model_config = ConfigDict(frozen=True)

    ok: bool
    not_run: str | None = None
    """What this machine lacks for it; then the trial is neither ok nor failed."""
    reason: str = ""
    """Why it is not ok."""
    detected_s: float | None = None
    """Until the gang's log reports the fault."""
    recovered_s: float | None = None
    """Until the first step was done in a new generation."""
    beyond_s: float | None = None
    """Until the first step past the last one that was done before."""
    steps_recomputed: int | None = None
    samples_lost: int | None = None
    """Of the steps that led to the final state."""
    samples_repeated: int | None = None
    final_state_equal: bool | None = None
    """To the undisturbed run's, bit for bit; None: not compared."""
    target_detected_s: float | None = Field(None, exclude=True)
    """Limit of the median, which for a hang depends on the steps before it; None: there is none."""
    target_recovered_s: float | None = Field(None, exclude=True)


class Percentiles(BaseModel):
    """Of the trials that have the figure; None: none has."""

    model_config = ConfigDict(frozen=True)

    p50: float | None = None
    p90: float | None = None
    max: float | None = None


class DrillSummary(BaseModel):
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
    summary: DrillSummary

    @property
    def failed(self) -> bool:
        """Some trial was run and is not ok."""
        return any(not trial.ok and trial.not_run is None for trial in self.trials)


def result_of(drill: str, trials: Sequence[TrialResult]) -> DrillResult:
    run = [trial for trial in trials if trial.not_run is None]
    summary = DrillSummary(
        n=len(run),
        ok=sum(trial.ok for trial in run),
        detected_s=percentiles(trial.detected_s for trial in run),
        recovered_s=percentiles(trial.recovered_s for trial in run),
    )
    return DrillResult(drill=drill, trials=list(trials), summary=summary)


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """Nearest rank: each one is a value that was measured."""
    measured = sorted(value for value in values if value is not None)
    if not measured:
        return Percentiles()
    return Percentiles(p50=_percentile(measured, 0.5), p90=_percentile(measured, 0.9), max=measured[-1])


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def results_table(results: Sequence[DrillResult]) -> Table:
    """A row for each drill."""
    rows = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("drill", "ok", "detected", "target", "recovered", "target", "lost", "final state"):
        rows.add_column(heading, justify="left" if heading in ("drill", "final state") else "right", no_wrap=True)
    for result in results:
        rows.add_row(*table_row(result, drill_named("drill", result.drill)))
    return rows


def table_row(result: DrillResult, kind: type[Fault]) -> tuple[str, ...]:
    """One drill."""
    summary = result.summary
    if not summary.n:
        return result.drill, "not run", "", "", "", "", "", ""
    run = [trial for trial in result.trials if trial.not_run is None]
    return (
        result.drill,
        f"{summary.ok} of {summary.n}",
        _seconds_cell(summary.detected_s),
        _target_cell([(trial.detected_s, trial.target_detected_s) for trial in run], kind.target_detected),
        _seconds_cell(summary.recovered_s),
        _target_cell([(trial.recovered_s, trial.target_recovered_s) for trial in run], kind.target_recovered),
        f"{sum(trial.samples_lost or 0 for trial in result.trials)} samples",
        _final_state_cell(result),
    )


def failure_notes(results: Sequence[DrillResult]) -> list[str]:
    """Why each trial that failed did, and what this machine lacks for those that were not run."""
    lines = []
    for result in results:
        lacking = sorted({trial.not_run for trial in result.trials if trial.not_run is not None})
        lines += [f"{result.drill}: this machine lacks {what}" for what in lacking]
        for number, trial in enumerate(result.trials, 1):
            if not trial.ok and trial.not_run is None:
                lines.append(f"{result.drill}, trial {number}: {trial.reason}")
    return lines


def _seconds_cell(figures: Percentiles) -> str:
    return "" if figures.p50 is None else f"{figures.p50:.2f} / {figures.max:.2f}"


def _target_cell(timed: Sequence[tuple[float | None, float | None]], default: float | None) -> str:
    """The median is to keep to it, and each trial to SLACK times as much.

    timed: the seconds of each trial, and its own target, of which the median counts. default: of those without one,
    since nothing was observed of them.
    """
    if default is None:
        return ""
    seconds = percentiles(s for s, _ in timed)
    wanted = percentiles(own for _, own in timed).p50 or default
    if seconds.p50 is None or seconds.max is None:
        return f"{wanted:.3g} NOT MET"
    met = seconds.p50 <= wanted and all(s is None or s <= SLACK * (own or default) for s, own in timed)
    return f"{wanted:.3g}" + ("" if met else " NOT MET")


def _final_state_cell(result: DrillResult) -> str:
    compared = [trial.final_state_equal for trial in result.trials if trial.final_state_equal is not None]
    if not compared:
        return "not compared"
    return "equal" if all(compared) else f"differs in {compared.count(False)} of {len(compared)}"
