"""The events of a job that a person wants to read, one line each."""

from collections.abc import Callable, Sequence
from typing import Any

from convoy.display import formatting
from convoy.job.events.causes import exit_words, first_cause, in_words
from convoy.job.events.types import (
    PEER_LOST,
    AnyEvent,
    CheckpointAlert,
    CheckpointCopied,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointMisread,
    CheckpointSaved,
    CheckpointSkipped,
    CheckpointsPruned,
    CheckpointVerified,
    Evaluated,
    Event,
    EventsDropped,
    ExportFailed,
    FailureDetected,
    GenerationEnded,
    GenerationStarted,
    NodeChecked,
    NoticeSeen,
    PeerSuspected,
    Restored,
    ScriptEndedLate,
    ScriptEvent,
    ScriptResumed,
    SlowNode,
    StepDone,
    Stopping,
    WorkerExited,
    WorkerReady,
)
from convoy.report.analysis.nodes_timeline import node_moments
from convoy.report.analysis.outcome import ending
from convoy.report.train_report import Moment


def timeline(events: Sequence[AnyEvent]) -> tuple[Moment, ...]:
    """All generations' moments, oldest first."""
    moments = (_WRITERS[type(e)](e) for e in events if type(e) in _WRITERS)
    alone = [moment for moment in moments if moment is not None]
    return tuple(sorted([*alone, *node_moments(events)], key=lambda moment: moment.t))


def _unfit(e: NodeChecked) -> Moment | None:
    if not e.problem:
        return None
    return Moment(t=e.t, text=f"Rank {e.rank} on node {e.node} is not fit to train: {e.problem}", tone="bad")


def _slow(e: SlowNode) -> Moment:
    if not e.share:
        return Moment(t=e.t, text=f"Node {e.slow_node} is not slow any more", tone="good")
    text = f"Node {e.slow_node} is slow: the others wait for it {formatting.percent(e.share)} of their time"
    return Moment(t=e.t, text=text, tone="warning")


def _started(e: GenerationStarted) -> Moment | None:
    if e.node != 0:
        return None
    ranks = f"{formatting.plural(e.world_size, 'rank')} on {formatting.plural(e.nodes, 'node')}"
    origin = "from the start" if e.parent_step is None else f"from step {e.parent_step:,}"
    return Moment(t=e.t, text=f"Generation {e.generation} formed: {ranks}, {origin}")


def _first_step(e: WorkerReady) -> Moment | None:
    if e.phase != "first_step" or e.rank != 0:
        return None
    return Moment(t=e.t, text=f"First step, {formatting.duration(e.seconds)} after the workers began")


def _restored(e: Restored) -> Moment:
    return Moment(t=e.t, text=f"Restored step {e.step:,} of generation {e.from_generation} in {_took(e)}")


def _saved(e: CheckpointSaved) -> Moment:
    took = formatting.duration(e.committed_seconds or e.seconds)
    return Moment(t=e.t, text=f"Checkpoint at step {e.step:,}: {formatting.size(e.bytes)} in {took}", tone="good")


def _save_skipped(e: CheckpointSkipped) -> Moment:
    steps = " and ".join(f"{step:,}" for step in e.under_way)
    text = f"Checkpoint at step {e.step:,} skipped: those of steps {steps} were not done"
    return Moment(t=e.t, text=text, tone="warning")


def _save_failed(e: CheckpointFailed) -> Moment:
    on = f" on {e.tier}" if e.tier and e.retried_on else ""
    then = f"; it goes to {e.retried_on}" if e.retried_on else ""
    how = "failed" if e.retried_on else "given up"
    return Moment(t=e.t, text=f"Checkpoint at step {e.step:,} {how}{on}: {e.error}{then}", tone="warning")


def _save_alert(e: CheckpointAlert) -> Moment:
    kept = "no checkpoint exists" if e.newest is None else f"the newest checkpoint is of step {e.newest:,}"
    return Moment(t=e.t, text=f"{formatting.plural(e.failures, 'save')} failed in a row; {kept}", tone="bad")


def _damaged(e: CheckpointDamaged) -> Moment:
    text = f"Checkpoint at step {e.step:,} of generation {e.from_generation} is damaged on {e.tier}: {e.error}"
    return Moment(t=e.t, text=text, tone="bad")


def _unverified(e: CheckpointVerified) -> Moment | None:
    if e.error is None:
        return None
    text = f"Part {e.part} of the checkpoint at step {e.step:,} was not read back: {e.error}"
    return Moment(t=e.t, text=text, tone="warning")


def _misread(e: CheckpointMisread) -> Moment:
    return Moment(t=e.t, text=f"Host {e.host} is not to be trusted with checkpoints: {e.error}", tone="bad")


def _copied(e: CheckpointCopied) -> Moment:
    what = f"Checkpoint at step {e.step:,}"
    if e.error is not None:
        return Moment(t=e.t, text=f"{what} was not copied to {e.tier}: {e.error}", tone="warning")
    return Moment(t=e.t, text=f"{what} copied to {e.tier} in {_took(e)}", tone="good")


def _pruned(e: CheckpointsPruned) -> Moment | None:
    if e.error is not None:
        return Moment(t=e.t, text=f"Old checkpoints on {e.tier} were not removed: {e.error}", tone="warning")
    if not e.commits and not e.attempts:
        return None
    steps = ", ".join(f"{step:,}" for _, step in e.commits)
    what = [f"checkpoints at steps {steps}"] if steps else []
    what += [f"what {formatting.plural(e.attempts, 'save')} without a commit left"] if e.attempts else []
    return Moment(t=e.t, text=f"Removed {' and '.join(what)}: {formatting.size(e.bytes)}")


def _not_exported(e: ExportFailed) -> Moment:
    return Moment(t=e.t, text=f"The model of step {e.step:,} was not exported: {e.error}", tone="warning")


def _evaluated(e: Evaluated) -> Moment:
    bits = "" if e.bits_per_byte is None else f", {formatting.significant(e.bits_per_byte)} bits per byte"
    return Moment(t=e.t, text=f"Evaluated at step {e.step:,}: loss {formatting.significant(e.loss)}{bits}")


def _skipped(e: StepDone) -> Moment | None:
    return Moment(t=e.t, text=f"Step {e.step:,} skipped: not finite", tone="warning") if e.skipped else None


def _exited(e: WorkerExited) -> Moment:
    if e.exit_code == PEER_LOST:
        return Moment(t=e.t, text=f"Rank {e.worker} on node {e.node} lost its peers", tone="warning")
    reason = f": {e.reason}" if e.reason else ""
    return Moment(t=e.t, text=f"Rank {e.worker} on node {e.node} ended, {exit_words(e)}{reason}", tone="bad")


def _suspected(e: PeerSuspected) -> Moment:
    text = f"Node {e.node} heard nothing of node {e.peer} for {formatting.duration(e.seconds)}"
    return Moment(t=e.t, text=text, tone="warning")


def _failed(e: FailureDetected) -> Moment:
    then = "the gang restarts in place" if e.action == "restart" else "this attempt ends"
    after = f"{formatting.duration(e.silent_seconds)} after its last sign of life"
    why = f"; {e.why}" if e.why else ""
    return Moment(t=e.t, text=f"First cause, {after}: {in_words(first_cause(e))}{why}; {then}", tone="bad")


_ACTIONS = {
    "none": "it is not acted on",
    "save": "the gang saves, and goes on",
    "save_and_end": "the gang saves, and ends",
    "end": "the gang ends on its last checkpoint",
}


def _noticed(e: NoticeSeen) -> Moment:
    left = "" if e.deadline is None else f", {formatting.duration(max(e.deadline - e.t, 0.0))} ahead"
    text = f": {e.text}" if e.text else ""
    return Moment(
        t=e.t, text=f"Notice on node {e.node} ({e.source}{left}){text}; {_ACTIONS[e.action]}", tone="warning"
    )  # fmt: skip


def _stopping(e: Stopping) -> Moment:
    return Moment(t=e.t, text=f"Stopping at step {e.step:,}: {ending(e)}", tone="warning")


def _resumed(e: ScriptResumed) -> Moment:
    return Moment(t=e.t, text=f"The script goes on from step {e.step:,}")


def _told(e: ScriptEvent) -> Moment:
    values = ", ".join(f"{key} = {value}" for key, value in e.values.items())
    text = f"Rank {e.rank}: {e.name}" + (f": {values}" if values else "")
    return Moment(t=e.t, text=text)


def _ended_late(e: ScriptEndedLate) -> Moment:
    text = f"Rank {e.worker} on node {e.node} was ended after its script's last line, with exit code {e.exit_code}"
    why = f"it had made no progress for {formatting.duration(e.seconds)}"
    return Moment(t=e.t, text=f"{text}: {why}", tone="warning")


def _dropped(e: EventsDropped) -> Moment:
    whose = f"the agent of node {e.node}" if e.rank is None else f"rank {e.rank}"
    what = formatting.plural(e.events, "event")
    text = f"{what} of {whose} lost: the storage did not take the log for too long"
    return Moment(t=e.t, text=text, tone="warning")


def _ended(e: GenerationEnded) -> Moment | None:
    if e.node != 0:
        return None
    tone = {"finished": "good", "stopped": "warning", "preempted": "warning", "failed": "bad"}[e.outcome]
    return Moment(t=e.t, text=f"Generation {e.generation} {e.outcome}", tone=tone)


def _took(e: Restored | CheckpointCopied) -> str:
    return formatting.duration(e.seconds)


_WRITERS: dict[type[Event], Callable[[Any], Moment | None]] = {
    GenerationStarted: _started,
    WorkerReady: _first_step,
    Restored: _restored,
    CheckpointSaved: _saved,
    CheckpointSkipped: _save_skipped,
    CheckpointFailed: _save_failed,
    CheckpointAlert: _save_alert,
    CheckpointDamaged: _damaged,
    CheckpointVerified: _unverified,
    CheckpointMisread: _misread,
    CheckpointCopied: _copied,
    CheckpointsPruned: _pruned,
    ExportFailed: _not_exported,
    Evaluated: _evaluated,
    StepDone: _skipped,
    WorkerExited: _exited,
    PeerSuspected: _suspected,
    FailureDetected: _failed,
    NodeChecked: _unfit,
    SlowNode: _slow,
    NoticeSeen: _noticed,
    Stopping: _stopping,
    ScriptResumed: _resumed,
    ScriptEvent: _told,
    ScriptEndedLate: _ended_late,
    EventsDropped: _dropped,
    GenerationEnded: _ended,
}
