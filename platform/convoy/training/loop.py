"""The training loop."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from convoy.checkpoint.format import Progress
from convoy.config.run import RunConfig
from convoy.gang.workers.board import Marker
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import Evaluated, MemoryPeak, RankThroughput, StepDone, Stopping
from convoy.training.batch import Batch
from convoy.training.checkpointing.saver import Saver
from convoy.training.measure.clock import Clock, OwnTime, UnknownOwnTime
from convoy.training.optimizer import learning_rate
from convoy.training.step import URGENT_REASONS, Stepper, StepResult, StopReason, Vote

RANK_LOG_STEPS = 10
"""Each rank logs its own throughput and memory each time at least this many steps are done."""

RANK_LOG_SHARE = 100
"""And at least one step in this many of the generation's: the card and whatever else shows the job reads the whole log
of a gang of many ranks."""

RETRY_SHARE = 10
"""A failed save is retried after this share of the interval: what failed once may fail slowly, again and again."""

Evaluator = Callable[[int, Callable[[], bool]], Evaluated | None]
"""The held-out loss after a step; its second argument, called before each batch, says whether this rank must stop soon.
None: a rank had to, or nothing is held out."""


class TrainingFailedError(RuntimeError):
    """Training cannot continue, for a reason that one line explains in full."""


class LastSaveFailedError(TrainingFailedError):
    """The store did not take the last checkpoint: another attempt repeats what was not saved."""


@dataclass
class Training:
    """Everything the loop needs of this rank."""

    config: RunConfig
    first: bool
    """This is rank 0, which speaks for the gang in the log."""
    batches: Iterator[Sequence[Batch]]
    """The micro batches of one step after the other, from the state's step on."""
    stepper: Stepper
    evaluate: Evaluator
    saver: Saver
    events: EventWriter
    clock: Clock
    elapsed: Callable[[], float]
    """Gang seconds of the job so far, all generations together."""
    vote: Callable[[float], Vote | None]
    """Whether this rank wants to stop, or to save, given the gang seconds so far."""
    after_first_step: Callable[[], None]
    memory: Callable[[int], MemoryPeak]
    """This rank's peak so far."""
    progress: Progress
    marker: Marker
    """Reports this rank's progress to the agent."""
    own_time: OwnTime | UnknownOwnTime
    updated: bool = False
    """This generation has applied an update."""
    nonfinite: int = 0
    """Skipped steps in a row."""
    begun_at: int = 0
    """Step at which this generation begins."""
    own_logged_at: int = 0
    """Step at which this rank's throughput was last logged."""
    tried: int = 0
    """Step of the newest save, failed and skipped ones included."""
    stopped: StopReason | None = None
    """Why training ended before the last step."""
    own: RankThroughput = field(default_factory=lambda: RankThroughput(step=0, tokens=0, seconds=0.0))
    """This rank's tokens and seconds since they were last logged."""


def train(t: Training) -> Progress:
    """Train to `train.steps`, or to where all ranks agree to stop; the state at the end is committed, unless there was
    no time for it.

    Raises TrainingFailedError when too many steps in a row were not finite, or the last save failed.
    """
    total = t.config.train.steps
    if t.progress.step == 0:
        evaluate_and_log(t)
    t.begun_at = t.tried = t.own_logged_at = t.progress.step
    while t.progress.step < total:
        result, lr = run_step(t)
        t.saver.settle(result.save_status, t.progress.step)
        log_step(t, result, lr)
        fail_after_nonfinite_steps(t, result)
        if not (t.updated or result.skipped):
            t.updated = True
            t.after_first_step()
        if result.stop == "preempted_unsaved":
            record_stop(t, result.stop)
            break
        ends = t.progress.step == total or result.stop is not None
        if ends or save_is_due(t) or (result.save and not t.nonfinite):
            save(t, last=ends)
        if evaluation_is_due(t, result):
            evaluate_and_log(t)
        if result.stop is not None and t.progress.step < total:
            record_stop(t, result.stop)
            break
    return t.progress


def run_step(t: Training) -> tuple[StepResult, float]:
    """The next optimizer step, and its learning rate."""
    t.marker.enter("step" if t.updated else "first_step")
    began = time.perf_counter()
    t.clock.start()
    t.own_time.start()
    batches = next(t.batches)
    t.clock.end_phase("data")
    t.own_time.meet_others()
    lr = learning_rate(t.progress.step, t.config.train.steps, t.config.optimizer, t.config.schedule)
    result = t.stepper(batches, t.progress.step, lr, t.vote(t.elapsed()), t.saver.status())
    if result.save:  # also by a rank that had not voted for it yet: it would have a second one made
        t.marker.acknowledge("save")
    t.nonfinite = t.nonfinite + 1 if result.skipped else 0
    t.progress = Progress(
        step=t.progress.step + 1,
        tokens=t.progress.tokens + result.tokens,
        skipped=t.progress.skipped + result.skipped,
        seconds=t.elapsed(),
    )
    seconds, own_seconds = time.perf_counter() - began, t.own_time.own_seconds()
    # Until the first step is done the gang starts, whichever rank is ready first.
    waited_seconds = seconds_waited(seconds, own_seconds) if t.updated else 0.0
    t.marker.step_done(t.progress.step, seconds, own_seconds)
    t.own = RankThroughput(
        step=t.progress.step,
        tokens=t.own.tokens + sum(b.weight for b in batches) // t.config.parallel.ranks_per_sample,
        seconds=t.own.seconds + seconds,
        waited_seconds=t.own.waited_seconds + waited_seconds,
    )
    return result, lr


def seconds_waited(step_seconds: float, own_seconds: float) -> float:
    """The part of a step in which the rank waited for others; 0 where its own part is not known."""
    return max(0.0, step_seconds - own_seconds) if own_seconds else 0.0


def log_step(t: Training, result: StepResult, lr: float) -> None:
    """Append what the step did, when it is due."""
    step, last = t.progress.step, t.config.train.steps
    if rank_log_is_due(step, t.own_logged_at, t.begun_at) or step == last or result.stop is not None:
        t.own_logged_at = step
        t.events.append(t.own)
        t.events.append(t.memory(step))
        t.own = RankThroughput(step=step, tokens=0, seconds=0.0)
    due = step % t.config.train.log_every_steps == 0 or step == last or result.skipped
    if t.first and due:
        t.events.append(step_done_event(result, step, lr, t.clock.phase_seconds()))


def step_done_event(result: StepResult, step: int, lr: float, phase_seconds: Mapping[str, float]) -> StepDone:
    """What a step did. phase_seconds: by phase."""
    done = StepDone(
        step=step,
        loss=result.loss,
        grad_norm=result.grad_norm,
        lr=lr,
        tokens=result.tokens,
        seconds=sum(phase_seconds.values()),
        skipped=result.skipped,
    )
    return done.model_copy(update={f"{phase}_seconds": value for phase, value in phase_seconds.items()})


def rank_log_is_due(step: int, logged_at: int, begun_at: int) -> bool:
    """Whether a rank logs its throughput now, given the steps at which it last did and its generation began."""
    return step % RANK_LOG_STEPS == 0 and (step - logged_at) * RANK_LOG_SHARE >= step - begun_at


def fail_after_nonfinite_steps(t: Training, result: StepResult) -> None:
    """Raise TrainingFailedError after `train.max_nonfinite_steps` skipped steps in a row."""
    most = t.config.train.max_nonfinite_steps
    if t.nonfinite < most:
        return
    detail = f"{most} steps in a row had a loss or gradient that is not finite (loss {result.loss})"
    if t.first:
        t.events.append(Stopping(step=t.progress.step, reason="nonfinite", detail=detail))
    t.saver.settle_all(t.progress.step)
    raise TrainingFailedError(f"step {t.progress.step}: {detail}; the newest checkpoint is from before them")


def save_is_due(t: Training) -> bool:
    """A multiple of `checkpoint.every_steps` was reached since the last save, and this step was finite."""
    every, step = t.config.checkpoint.every_steps, t.progress.step
    # Weights with which a step was skipped may be broken already: the commit before them remains the newest.
    if every is None or t.nonfinite:
        return False
    saved = max(t.begun_at, t.saver.newest_save_step)
    failed_since = t.tried > saved
    return step // every > saved // every and (not failed_since or step - t.tried >= every / RETRY_SHARE)


def evaluation_is_due(t: Training, result: StepResult) -> bool:
    """A multiple of `evaluation.every_steps`, unless a machine is about to go; and the last step."""
    step = t.progress.step
    due = step % t.config.evaluation.every_steps == 0 and result.stop not in URGENT_REASONS
    return due or step == t.config.train.steps


def save(t: Training, *, last: bool) -> None:
    """Begin to save. The last save is waited for, and it alone may not fail."""
    t.marker.enter("save")
    if t.nonfinite:
        check_held_out_loss(t)
    t.tried = t.progress.step
    if not last:
        t.saver.save(t.progress)
        return
    error = t.saver.save_last(t.progress)
    if error is not None:
        raise LastSaveFailedError(f"the last checkpoint, of step {t.progress.step}, was not saved: {error}")


def check_held_out_loss(t: Training) -> None:
    """Whether the weights are worth keeping though the last step was skipped: raises TrainingFailedError if not."""
    t.marker.enter("evaluate")
    measured = t.evaluate(t.progress.step, lambda: False)
    t.marker.enter("save")
    if measured is not None and not math.isfinite(loss := measured.loss):
        t.saver.settle_all(t.progress.step)
        newest = t.saver.newest_committed_step
        remains = "there is no checkpoint" if newest is None else f"the newest checkpoint (step {newest}) remains valid"
        raise TrainingFailedError(
            f"step {t.progress.step}: the last step was not finite, nor is the held-out loss ({loss}); {remains}"
        )


def evaluate_and_log(t: Training) -> None:
    """Skipped if a machine is about to go (the state is saved after one more step), except after the last step."""
    t.marker.enter("evaluate")
    last = t.progress.step == t.config.train.steps
    measured = t.evaluate(t.progress.step, lambda: not last and t.vote(t.elapsed()) in URGENT_REASONS)
    if t.first and measured is not None:
        t.events.append(measured)


def record_stop(t: Training, reason: StopReason) -> None:
    t.stopped = reason
    if t.first:
        t.events.append(Stopping(step=t.progress.step, reason=reason))
