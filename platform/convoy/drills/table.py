"""Drills against their targets, as a table for people: seconds, the median and the longest of all trials."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from convoy.drills.fault import Fault
from convoy.drills.observe import SLACK
from convoy.drills.result import DrillResult, Percentiles, percentiles


def table(results: Sequence[DrillResult], drills: Mapping[str, type[Fault]]) -> Table:
    """A row for each drill. drills: by name."""
    rows = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("drill", "ok", "detected", "target", "recovered", "target", "lost", "final state"):
        rows.add_column(heading, justify="left" if heading in ("drill", "final state") else "right", no_wrap=True)
    for result in results:
        rows.add_row(*row(result, drills[result.drill]))
    return rows


def row(result: DrillResult, kind: type[Fault]) -> tuple[str, ...]:
    """What is told of one drill."""
    summary = result.summary
    if not summary.n:
        return result.drill, "not run", "", "", "", "", "", ""
    run = [trial for trial in result.trials if trial.not_run is None]
    return (
        result.drill,
        f"{summary.ok} of {summary.n}",
        _seconds(summary.detected_s),
        _target([(trial.detected_s, trial.target_detected_s) for trial in run], kind.target_detected),
        _seconds(summary.recovered_s),
        _target([(trial.recovered_s, trial.target_recovered_s) for trial in run], kind.target_recovered),
        f"{sum(trial.samples_lost or 0 for trial in result.trials)} samples",
        _state(result),
    )


def notes(results: Sequence[DrillResult]) -> list[str]:
    """Why each trial that failed did, and what this machine lacks for those that were not run."""
    found = []
    for result in results:
        lacking = sorted({trial.not_run for trial in result.trials if trial.not_run is not None})
        found += [f"{result.drill}: this machine lacks {what}" for what in lacking]
        for number, trial in enumerate(result.trials, 1):
            if not trial.ok and trial.not_run is None:
                found.append(f"{result.drill}, trial {number}: {trial.reason}")
    return found


def _seconds(found: Percentiles) -> str:
    return "" if found.p50 is None else f"{found.p50:.2f} / {found.max:.2f}"


def _target(found: Sequence[tuple[float | None, float | None]], target: float | None) -> str:
    """The median is to keep to it, and each trial to SLACK times as much.

    found: of each trial the seconds, and its own target, of which the median counts. target: of trials that have none,
    as nothing was seen of them.
    """
    if target is None:
        return ""
    seconds = percentiles(s for s, _ in found)
    wanted = percentiles(own for _, own in found).p50 or target
    if seconds.p50 is None or seconds.max is None:
        return f"{wanted:.3g} NOT MET"
    kept = seconds.p50 <= wanted and all(s is None or s <= SLACK * (own or target) for s, own in found)
    return f"{wanted:.3g}" + ("" if kept else " NOT MET")


def _state(result: DrillResult) -> str:
    compared = [trial.final_state_equal for trial in result.trials if trial.final_state_equal is not None]
    if not compared:
        return "not compared"
    return "equal" if all(compared) else f"differs in {compared.count(False)} of {len(compared)}"
