"""What was planned of a run, and what its log measured of the same. Pure.

Only what means the same on both sides is compared. Medians leave out the warm-up, as everywhere in the report.
"""

import math
from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from convoy.catalog.gpus import chip_peak, gpu_peak
from convoy.display import formatting
from convoy.model.counts import mfu
from convoy.planner.plan_schema import Plan
from convoy.planner.step.step_time import StepPlan
from convoy.report.train_report import TrainReport
from convoy.stats.spread import Spread

Unit = Literal["seconds", "tokens/s", "share", "bytes", "usd"]

OPTIMIZER = ("optimizer",)
OVERHEAD = ("step",)
"""The parts of a planned step that correspond to `optimizer`, and to `data`, `exchange` and `other`, of a measured one.
All others happen in forward and backward: so do the waits for the slowest machine, in the collectives there."""


class Comparison(BaseModel):
    """One figure, predicted and measured."""

    model_config = ConfigDict(frozen=True)

    what: str
    unit: Unit
    predicted: float
    measured: float | None
    """A median where there are several; None: not yet."""
    n: int | None = None
    """Measurements; None: it is one figure of the whole job."""
    why_not: str = ""
    """Why there is no error: the two are not of the same thing."""

    @property
    def pct_error(self) -> float | None:
        """(predicted - measured) / measured, in percent; None where there is nothing to compare."""
        if self.measured is None or not self.measured or self.why_not:
            return None
        return 100 * (self.predicted - self.measured) / self.measured


def plan_mismatch(plan: Plan, report: TrainReport) -> str:
    """How what trained differs from the plan, so that nothing of a step can be compared; empty: it does not."""
    if plan.memory is None and plan.step is None:
        return ""
    ranks, device = report.measured_world_size, _unplanned_device(plan, report)
    if ranks is not None and ranks != plan.machines.ranks:
        return f"Planned for {formatting.plural(plan.machines.ranks, 'rank')}, and {ranks:,} trained"
    if device:
        return f"Planned for {plan.machines.gpu}, and {device} computes"
    if plan.training and report.measured_training not in ("", plan.training):
        return "Planned of another configuration than the newest steps had"
    return ""


def _unplanned_device(plan: Plan, report: TrainReport) -> str:
    """The device that computes, if it is of another kind or another chip than planned; empty: it is not."""
    device, gpu = report.hardware.device if report.hardware else "", plan.machines.gpu
    kinds = {rank.memory_device for rank in report.ranks} - {None}
    if kinds and ("cuda" in kinds) != (gpu != "cpu"):
        return device or ("a GPU" if "cuda" in kinds else "a CPU")
    planned, actual = chip_peak(gpu), gpu_peak(device)
    return device if planned and actual and planned.chip != actual.chip else ""


def comparisons(plan: Plan, report: TrainReport) -> tuple[Comparison, ...]:
    """Each planned figure with its measurement. Where something else trained, only figures that do not depend on it."""
    as_planned = not plan_mismatch(plan, report)
    return (
        *(_step_comparisons(plan, report) if as_planned else ()),
        *_save_comparisons(plan, report, as_planned),
        *(_whole_job_comparisons(plan, report) if as_planned else ()),
    )


def computing_seconds(planned: StepPlan) -> dict[str, float]:
    """The planned seconds of each part of forward and backward."""
    return {name: each for name, each in planned.parts.items() if name not in OPTIMIZER + OVERHEAD}


def _step_comparisons(plan: Plan, report: TrainReport) -> Iterator[Comparison]:
    step, time, rate, why = plan.step, report.step_time, report.tokens_per_second, plan.unmodelled
    if step is not None:
        yield _compare("step", "seconds", step.seconds, time.total if time else None, why_not=why)
        for what, seconds, names in _comparable_parts(step):
            took = sum(time.parts[name].median for name in names) if time else None
            yield _compare(what, "seconds", seconds, took, time.total.n if time else None, why)
        yield _compare("tokens per second", "tokens/s", step.tokens_per_second, rate, why_not=why)
        flops = report.model.flops_per_token if report.model else None
        share = mfu(rate.median, flops, step.peak_flops, plan.machines.ranks) if rate and flops else None
        what = "share of matmul rate, at the job's sizes" if plan.measured else "MFU"
        yield _compare(what, "share", step.mfu, share, rate.n if rate and share is not None else None, why)
    if plan.memory is not None:
        peaks = [r for r in report.ranks if r.memory_peak_bytes is not None]
        resident = any(r.memory_device != "cuda" for r in peaks)
        why = "planned are tensors, measured is the whole process" if resident else ""
        what = "memory peak, of the highest rank"
        yield _compare(what, "bytes", plan.memory.peak_bytes, report.memory_peak_bytes, len(peaks) or None, why)


def _comparable_parts(step: StepPlan) -> tuple[tuple[str, float, tuple[str, ...]], ...]:
    """The parts of a step that both sides distinguish, each with its planned seconds and the names of the measured
    parts; they add up to the step, apart from medians."""
    return (
        ("of it forward and backward", sum(computing_seconds(step).values()), ("forward", "backward")),
        ("of it optimizer", _sum_parts(step.parts, OPTIMIZER), ("optimizer",)),
        ("of it batch, decisions, log", _sum_parts(step.parts, OVERHEAD), ("data", "exchange", "other")),
    )


def _save_comparisons(plan: Plan, report: TrainReport, as_planned: bool) -> Iterator[Comparison]:
    saves = plan.saves
    if saves is None:
        return
    newest, took = report.checkpoints[-1].bytes if report.checkpoints else None, report.save_time
    yield _compare("checkpoint", "bytes", saves.state_bytes, newest)
    if as_planned and saves.every_steps is not None:
        yield _compare("save: training waits", "seconds", saves.stall_seconds, took.stall_seconds if took else None)
        if plan.step is not None:
            until = _seconds_until_agreed(saves.durable_seconds, plan.step.seconds)
            yield _compare("save: until all ranks know of it", "seconds", until, took.durable_seconds if took else None)


def _seconds_until_agreed(durable_seconds: float, step_seconds: float) -> float:
    """Seconds from the call of a save, between two steps, until all ranks know of its commit, as in a log: each rank
    reports what it knows as a step begins, and all act on it at its end (`training/step.py`). What is lost with a
    machine does not wait for it: a commit counts as soon as it is in the store."""
    return (math.ceil(durable_seconds / step_seconds) + 1) * step_seconds


def _whole_job_comparisons(plan: Plan, report: TrainReport) -> Iterator[Comparison]:
    """The whole job, which is measured when it is done; nothing for a job that ended early.

    Start and evaluations are not planned: steps and saves are compared without them, time and cost with them. Steps are
    those that trained as planned; time and cost cover all of the job, without an error where a part trained otherwise.
    """
    state, step, bought = report.outcome.state, plan.step, plan.configured_market
    if state not in ("running", "finished"):
        return
    trained = report.stretch if state == "finished" else None
    steps = trained.steps if trained else report.target_steps
    if step is not None and steps is not None:
        seconds = steps * (step.seconds + (step.save_stall_seconds or 0.0))
        took = trained.seconds if trained else None
        yield _compare("all steps, with saves", "seconds", seconds, took, steps, plan.unmodelled)
    if bought is not None:
        why = plan.unmodelled or _why_only_partly(plan, report)
        yield _compare("whole job", "seconds", bought.seconds, report.wall_seconds if trained else None, why_not=why)
        if bought.cost is not None:
            paid = report.cost.total if trained and report.cost else None
            yield _compare("cost", "usd", bought.cost.usd, None if paid is None else float(paid), why_not=why)


def _why_only_partly(plan: Plan, report: TrainReport) -> str:
    """How a part of the job was trained otherwise than planned; empty: none was, as far as the log shows."""
    others = sorted({g.world_size for g in report.generations} - {plan.machines.ranks})
    if others:
        return f"{' and '.join(f'{ranks:,}' for ranks in others)} ranks trained a part of it"
    if plan.training and any(g.training not in ("", plan.training) for g in report.generations):
        return "a part of it was trained with another configuration"
    return ""


def _compare(
    what: str, unit: Unit, predicted: float, measured: Spread | float | None, n: int | None = None, why_not: str = ""
) -> Comparison:
    """measured: of a spread the median counts, with its n."""
    if isinstance(measured, Spread):
        n, measured = measured.n, measured.median
    return Comparison(what=what, unit=unit, predicted=predicted, measured=measured, n=n, why_not=why_not)


def _sum_parts(parts: dict[str, float], names: tuple[str, ...]) -> float:
    return sum(parts[name] for name in names if name in parts)
