"""What was planned of a run, and what its log measured of the same. Pure.

Only what means the same on both sides is compared. Medians leave out the warm-up, as everywhere in the report.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from convoy.report.stats import Spread
from convoy.report.train_report import StepTime, TrainReport
from convoy.results.plan import Plan, PlannedStep

Unit = Literal["seconds", "tokens/s", "share", "bytes", "usd"]

OPTIMIZER = ("optimizer",)
BESIDE = ("step",)
"""Parts of a planned step that stand for `optimizer`, and for `data`, `exchange` and `other`, of a measured one. All
others happen in forward and backward: so do the waits for the slowest machine, in the collectives there."""


class Compared(BaseModel):
    """One figure, from both sides."""

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


def other_ranks(plan: Plan, report: TrainReport) -> int | None:
    """How many ranks trained, where the plan is of another number: then nothing of a step can be compared."""
    ranks = report.measured_world_size
    return None if ranks is None or ranks == plan.machines.ranks else ranks


def compared(plan: Plan, report: TrainReport) -> tuple[Compared, ...]:
    """What is planned, each beside its measurement. With other ranks than planned only what does not depend on them."""
    same = other_ranks(plan, report) is None
    return (
        *(_speed(plan, report) if same else ()),
        *_checkpoints(plan, report, same),
        *(_whole(plan, report) if same else ()),
    )


def computing_parts(planned: PlannedStep) -> dict[str, float]:
    """Seconds of what forward and backward are planned to be made of."""
    return {name: each for name, each in planned.parts.items() if name not in OPTIMIZER + BESIDE}


def _speed(plan: Plan, report: TrainReport) -> Iterator[Compared]:
    step = plan.step
    if step is not None:
        time, rate = report.step_time, report.tokens_per_second
        yield _median("step", "seconds", step.seconds, time.total if time else None)
        yield from _step_parts(step, time)
        yield _median("tokens per second", "tokens/s", step.tokens_per_second, rate)
        share = "share of the matmul rate at its own sizes" if plan.measured else "MFU"
        yield _median(share, "share", step.mfu, rate, _utilisation(plan, report) if rate else None)
    if plan.memory is not None:
        yield _memory(plan.memory.peak_bytes, report)


def _step_parts(planned: PlannedStep, measured: StepTime | None) -> Iterator[Compared]:
    """The parts of a step that both sides tell apart; they add up to it, up to medians."""
    both = (
        ("of it forward and backward", sum(computing_parts(planned).values()), ("forward", "backward")),
        ("of it optimizer", _sum(planned.parts, OPTIMIZER), ("optimizer",)),
        ("of it batch, decisions, log", _sum(planned.parts, BESIDE), ("data", "exchange", "other")),
    )
    for what, seconds, names in both:
        took = None if measured is None else sum(measured.parts[name].median for name in names)
        n = None if measured is None else measured.total.n
        yield Compared(what=what, unit="seconds", predicted=seconds, measured=took, n=n)


def _utilisation(plan: Plan, report: TrainReport) -> float | None:
    """Model FLOP/s of a rank over the peak that the plan has."""
    rate, model = report.tokens_per_second, report.model
    if rate is None or model is None or model.flops_per_token is None or plan.step is None:
        return None
    return model.flops_per_token * rate.median / plan.machines.ranks / plan.step.peak_flops


def _memory(predicted: int, report: TrainReport) -> Compared:
    peaks = [r for r in report.ranks if r.memory_peak_bytes is not None]
    resident = any(r.memory_device != "cuda" for r in peaks)
    return Compared(
        what="memory peak, of the highest rank",
        unit="bytes",
        predicted=predicted,
        measured=report.memory_peak_bytes,
        n=len(peaks) or None,
        why_not="planned are tensors, measured is the whole process" if resident else "",
    )


def _checkpoints(plan: Plan, report: TrainReport, same: bool) -> Iterator[Compared]:
    saves = plan.saves
    if saves is None:
        return
    newest = report.checkpoints[-1].bytes if report.checkpoints else None
    took = report.save_time
    stall, durable = (took.stall_seconds, took.durable_seconds) if took else (None, None)
    yield Compared(what="checkpoint", unit="bytes", predicted=saves.state_bytes, measured=newest)
    if same and saves.every_steps is not None:
        yield _median("save: training stands still", "seconds", saves.stall_seconds, stall)
        yield _median("save: until it counts", "seconds", saves.durable_seconds, durable)


def _whole(plan: Plan, report: TrainReport) -> Iterator[Compared]:
    """Until the end, which is measured when the job is done; nothing of a job that ended before it. A start and
    evaluations are not planned: steps and saves are compared without them, and what is bought with them."""
    state, step, bought = report.outcome.state, plan.step, plan.bought
    if state not in ("running", "finished"):
        return
    trained = report.stretch if state == "finished" else None
    steps = trained.steps if trained else report.target_steps
    if step is not None and steps is not None:
        seconds = steps * (step.seconds + (step.save_stall_seconds or 0.0))
        took = trained.seconds if trained else None
        yield Compared(what="all steps, with saves", unit="seconds", predicted=seconds, measured=took, n=steps)
    if bought is not None:
        took = report.wall_seconds if trained else None
        yield Compared(what="whole job", unit="seconds", predicted=bought.seconds, measured=took)
        if bought.cost is not None:
            paid = report.cost.total if trained and report.cost else None
            usd = None if paid is None else float(paid)
            yield Compared(what="cost", unit="usd", predicted=bought.cost.usd, measured=usd)


def _median(what: str, unit: Unit, predicted: float, figure: Spread | None, measured: float | None = None) -> Compared:
    """measured: in place of the figure's median."""
    value = measured if measured is not None else figure.median if figure else None
    return Compared(what=what, unit=unit, predicted=predicted, measured=value, n=figure.n if figure else None)


def _sum(parts: dict[str, float], names: tuple[str, ...]) -> float:
    return sum(parts[name] for name in names if name in parts)
