"""From the event log to the report of a training job. Pure: no clock, no store."""

from collections.abc import Sequence

from convoy.job.events.registry import (
    CheckpointSaved,
    Evaluated,
    Event,
    GenerationStarted,
    ModelBuilt,
    NoticeSources,
    Restored,
    SampleText,
    ScriptStep,
    StepDone,
    WorkerReady,
)
from convoy.job.heartbeat import HERE, Heartbeat
from convoy.report.analysis import checkpoints, throughput
from convoy.report.analysis.goodput import goodput
from convoy.report.analysis.hardware_use import hardware_use
from convoy.report.analysis.incidents import incidents, newest_attempt_generations, slow_nodes, storage_troubles
from convoy.report.analysis.ledger import cost
from convoy.report.analysis.lineage import events_on_branch, lineage
from convoy.report.analysis.network import network_use
from convoy.report.analysis.outcome import generations, outcome_of
from convoy.report.analysis.timeline import timeline
from convoy.report.train_report import Model, Outcome, Restore, Sample, StartupPhase, Step, TrainReport, Validation

PACE_STEPS = 50
"""The ETA's pace is taken over at most this many of the newest logged steps."""

_PHASES = ("imported", "connected", "built", "restored", "first_step")


def fold(events: Sequence[Event], target_steps: int | None = None, heartbeat: Heartbeat | None = HERE) -> TrainReport:
    """The report of a job of `target_steps` steps, by its whole log or the part that exists so far.

    events: by time, as `read_events` gives them. Curves, samples and checkpoints are of the living branch only;
    generations and the timeline are of the whole log. heartbeat: as `outcome_of` takes it.
    """
    branch = events_on_branch(events, lineage(events))
    last = max((e.generation for e in events), default=0)
    newest = [e for e in events if e.generation == last]
    steps = [e for e in branch if isinstance(e, StepDone)]
    outcome = outcome_of(events, heartbeat)
    formed = generations(events, heartbeat)
    attempt = newest_attempt_generations(formed)
    alike, start = throughput.comparable_generations(events, branch)
    measured, ranks = throughput.measured_steps(branch, alike), start.world_size if start else None
    rate = throughput.gang_rate(measured)
    hardware = throughput.hardware(events, newest)
    model = _model(branch)
    flops = model.flops_per_token if model else None
    matmul = hardware.matmul_tflops.median if hardware and hardware.matmul_tflops else None
    rows = throughput.rank_rows(newest)
    pace, pace_steps = _seconds_per_step([s for s in steps if s.generation == last])
    restorable = checkpoints.checkpoints(events, branch)
    spent = goodput(events, formed)
    step = _steps_done(branch, formed[-1].parent_step if formed else None)
    return TrainReport(
        outcome=outcome,
        started=min((e.t for e in events), default=None),
        last_event=max((e.t for e in events), default=None),
        wall_seconds=spent.seconds if spent else 0.0,
        step=step,
        target_steps=target_steps,
        eta_seconds=_eta_seconds(outcome, step, target_steps, pace),
        pace_steps=pace_steps,
        model=model,
        param_dtype=next((e.param_dtype for e in events if isinstance(e, GenerationStarted) and e.param_dtype), None),
        hardware=hardware,
        network=network_use(newest, formed[-1].world_size if formed else 0),
        steps=tuple(_step(s) for s in steps),
        validations=_validations(branch),
        warmup_steps=throughput.WARMUP_STEPS,
        measured_world_size=ranks,
        measured_training=start.training if start else "",
        tokens_per_second=rate,
        step_time=throughput.step_time(measured),
        hardware_use=hardware_use(events),
        stretch=throughput.trained_stretch(events, alike),
        checkpoint_seconds=sum(e.seconds for e in events if isinstance(e, CheckpointSaved)),
        evaluation_seconds=sum(e.seconds for e in events if isinstance(e, Evaluated)),
        matmul_share=throughput.utilisation(matmul, flops, rate, ranks),
        mfu=throughput.utilisation(hardware.peak_tflops if hardware else None, flops, rate, ranks),
        ranks=rows,
        memory_peak_bytes=max((r.memory_peak_bytes for r in rows if r.memory_peak_bytes is not None), default=None),
        checkpoints=restorable,
        tiers=checkpoints.tiers(events, restorable),
        saves=checkpoints.save_counts(events),
        save_time=checkpoints.save_time(events, alike),
        alert=checkpoints.current_save_alert(events),
        storage_troubles=storage_troubles(events, formed),
        slow_nodes=slow_nodes(newest),
        restores=tuple(Restore.model_validate(e) for e in events if isinstance(e, Restored)),
        generations=formed,
        incidents=incidents(events, formed),
        goodput=spent,
        cost=cost(events, formed, step),
        notice_sources={
            e.node: tuple(e.answering) for e in events if isinstance(e, NoticeSources) and e.generation in attempt
        },
        skipped_steps=sum(s.skipped for s in steps),
        samples=_samples(branch),
        startup=_startup_phases(newest),
        timeline=timeline(events),
    )


def _step(e: StepDone) -> Step:
    rate = e.tokens / e.seconds if e.seconds > 0 else float("nan")
    return Step(step=e.step, loss=e.loss, grad_norm=e.grad_norm, lr=e.lr, tokens_per_second=rate, skipped=e.skipped)


def _steps_done(branch: Sequence[Event], parent_step: int | None) -> int:
    done = (e.step for e in branch if isinstance(e, StepDone | ScriptStep | CheckpointSaved | Restored))
    return max(done, default=parent_step or 0)


def _seconds_per_step(steps: Sequence[StepDone]) -> tuple[float | None, int]:
    """Mean wall seconds per step over the newest steps, and how many steps those are."""
    recent = steps[-PACE_STEPS:]
    if not recent:
        return None, 0
    first, last = recent[0], recent[-1]
    if last.step <= first.step:
        return last.seconds, 1
    return (last.t - first.t) / (last.step - first.step), last.step - first.step


def _eta_seconds(outcome: Outcome, step: int, target: int | None, pace: float | None) -> float | None:
    if outcome.state != "running" or target is None or pace is None:
        return None
    return max(target - step, 0) * pace


def _model(branch: Sequence[Event]) -> Model | None:
    built = next((e for e in reversed(branch) if isinstance(e, ModelBuilt)), None)
    return None if built is None else Model.model_validate(built)


def _validations(branch: Sequence[Event]) -> tuple[Validation, ...]:
    by_step = {e.step: e for e in branch if isinstance(e, Evaluated)}  # a restart evaluates its first step again
    return tuple(Validation.model_validate(e) for _, e in sorted(by_step.items()))


def _samples(branch: Sequence[Event]) -> tuple[Sample, ...]:
    """The samples of the newest step that has any."""
    samples = [e for e in branch if isinstance(e, SampleText)]
    newest = max((e.step for e in samples), default=None)
    return tuple(Sample.model_validate(e) for e in samples if e.step == newest)


def _startup_phases(newest: Sequence[Event]) -> tuple[StartupPhase, ...]:
    phases: list[StartupPhase] = []
    before = 0.0
    for name in _PHASES:
        slowest = max((e.seconds for e in newest if isinstance(e, WorkerReady) and e.phase == name), default=None)
        if slowest is not None:
            phases.append(StartupPhase(name=name, at_seconds=slowest, took_seconds=max(slowest - before, 0.0)))
            before = slowest
    return tuple(phases)
