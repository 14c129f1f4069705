"""The events of a job that a person wants to read, one line each."""

from collections.abc import Callable, Sequence
from typing import Any

from convoy.events.types import (
    PEER_LOST,
    AnyEvent,
    CheckpointFailed,
    CheckpointSaved,
    Evaluated,
    Event,
    ExportFailed,
    GenerationEnded,
    GenerationStarted,
    Restored,
    StepDone,
    Stopping,
    WorkerExited,
    WorkerReady,
)
from convoy.report import numbers
from convoy.report.outcome import ending, exit_words
from convoy.report.train_report import Moment


def timeline(events: Sequence[AnyEvent]) -> tuple[Moment, ...]:
    """All generations' moments, oldest first."""
    moments = (_WRITERS[type(e)](e) for e in events if type(e) in _WRITERS)
    return tuple(moment for moment in moments if moment is not None)


def _started(e: GenerationStarted) -> Moment | None:
    if e.node != 0:
        return None
    ranks = f"{numbers.plural(e.world_size, 'rank')} on {numbers.plural(e.nodes, 'node')}"
    origin = "from the start" if e.parent_step is None else f"from step {e.parent_step:,}"
    return Moment(t=e.t, text=f"Generation {e.generation} formed: {ranks}, {origin}")


def _first_step(e: WorkerReady) -> Moment | None:
    if e.phase != "first_step" or e.rank != 0:
        return None
    return Moment(t=e.t, text=f"First step, {numbers.duration(e.seconds)} after the workers began")


def _restored(e: Restored) -> Moment:
    return Moment(t=e.t, text=f"Restored step {e.step:,} of generation {e.from_generation} in {_took(e)}")


def _saved(e: CheckpointSaved) -> Moment:
    return Moment(t=e.t, text=f"Checkpoint at step {e.step:,}: {numbers.size(e.bytes)} in {_took(e)}", tone="good")


def _save_failed(e: CheckpointFailed) -> Moment:
    return Moment(t=e.t, text=f"Checkpoint at step {e.step:,} given up: {e.error}", tone="warning")


def _not_exported(e: ExportFailed) -> Moment:
    return Moment(t=e.t, text=f"The model of step {e.step:,} was not exported: {e.error}", tone="warning")


def _evaluated(e: Evaluated) -> Moment:
    bits = "" if e.bits_per_byte is None else f", {numbers.significant(e.bits_per_byte)} bits per byte"
    return Moment(t=e.t, text=f"Evaluated at step {e.step:,}: loss {numbers.significant(e.loss)}{bits}")


def _skipped(e: StepDone) -> Moment | None:
    return Moment(t=e.t, text=f"Step {e.step:,} skipped: not finite", tone="warning") if e.skipped else None


def _exited(e: WorkerExited) -> Moment:
    if e.exit_code == PEER_LOST:
        return Moment(t=e.t, text=f"Rank {e.worker} on node {e.node} lost its peers", tone="warning")
    reason = f": {e.reason}" if e.reason else ""
    return Moment(t=e.t, text=f"Rank {e.worker} on node {e.node} ended, {exit_words(e)}{reason}", tone="bad")


def _stopping(e: Stopping) -> Moment:
    return Moment(t=e.t, text=f"Stopping at step {e.step:,}: {ending(e)}", tone="warning")


def _ended(e: GenerationEnded) -> Moment | None:
    if e.node != 0:
        return None
    tone = {"finished": "good", "stopped": "warning", "failed": "bad"}[e.outcome]
    return Moment(t=e.t, text=f"Generation {e.generation} {e.outcome}", tone=tone)


def _took(e: Restored | CheckpointSaved) -> str:
    return numbers.duration(e.seconds)


_WRITERS: dict[type[Event], Callable[[Any], Moment | None]] = {
    GenerationStarted: _started,
    WorkerReady: _first_step,
    Restored: _restored,
    CheckpointSaved: _saved,
    CheckpointFailed: _save_failed,
    ExportFailed: _not_exported,
    Evaluated: _evaluated,
    StepDone: _skipped,
    WorkerExited: _exited,
    Stopping: _stopping,
    GenerationEnded: _ended,
}
