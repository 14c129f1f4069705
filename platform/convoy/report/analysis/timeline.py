"""The events of a job that a person wants to read, one line each."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from convoy.display.formatting import duration, percent, plural, significant, size
from convoy.display.page import Tone
from convoy.job.events.gang import cause_in_words, exit_words, first_cause
from convoy.job.events.registry import (
    PEER_LOST,
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
    GangStopped,
    GenerationEnded,
    GenerationStarted,
    MemoryPeak,
    NodeChecked,
    NoticeReceived,
    NoticeSources,
    PeerSuspected,
    RankThroughput,
    Restored,
    ScriptEndedLate,
    ScriptEvent,
    ScriptResumed,
    SlowNode,
    StepDone,
    Stopping,
    StorageBad,
    StorageGood,
    WorkerExited,
    WorkerReady,
)
from convoy.report.analysis.outcome import stop_reason
from convoy.report.train_report import Moment

TOGETHER_SECONDS = 30.0
"""Events of several nodes within this time of the first one are one moment."""

_MAX_NODES_NAMED = 6

_TONES: dict[str, Tone] = {"finished": "good", "stopped": "warning", "preempted": "warning", "failed": "bad"}

_ACTIONS = {
    "none": "no action",
    "save": "the gang saves and continues",
    "save_and_end": "the gang saves and ends",
    "end": "the gang ends on its last checkpoint",
}

Line = tuple[str, Tone]


def timeline(events: Sequence[Event]) -> tuple[Moment, ...]:
    """All generations' moments, oldest first."""
    lines = ((e.t, _line(e)) for e in events)
    moments = [Moment(t=t, text=line[0], tone=line[1]) for t, line in lines if line is not None]
    return tuple(sorted([*moments, *_node_moments(events)], key=lambda moment: moment.t))


def _line(e: Event) -> Line | None:
    if isinstance(e, RankThroughput | MemoryPeak) or (isinstance(e, StepDone) and not e.skipped):
        return None  # most of a log
    own = e.timeline_text()
    return _training_line(e) or _checkpoint_line(e) or _failure_line(e) or ((own, "plain") if own else None)


def _training_line(e: Event) -> Line | None:
    match e:
        case GenerationStarted(node=0):
            ranks = f"{plural(e.world_size, 'rank')} on {plural(e.nodes, 'node')}"
            origin = ", from the start" if e.parent_step is None else f", from step {e.parent_step:,}"
            if e.parent_step is None and e.generation > 1 and not e.training:
                origin = ""  # a script, which knows by itself where it continues
            return f"Generation {e.generation} formed: {ranks}{origin}", "plain"
        case WorkerReady(phase="first_step", rank=0):
            return f"First step, {duration(e.seconds)} after the workers began", "plain"
        case StepDone():
            return f"Step {e.step:,} skipped: not finite", "warning"
        case Evaluated():
            bits = "" if e.bits_per_byte is None else f", {significant(e.bits_per_byte)} bits per byte"
            return f"Evaluated at step {e.step:,}: loss {significant(e.loss)}{bits}", "plain"
        case ScriptResumed():
            return f"The script resumes from step {e.step:,}", "plain"
        case ScriptEvent():
            values = ", ".join(f"{key} = {value}" for key, value in e.values.items())
            return f"Rank {e.rank}: {e.name}" + (f": {values}" if values else ""), "plain"
        case NoticeReceived():
            left = "" if e.deadline is None else f", {duration(max(e.deadline - e.t, 0.0))} ahead"
            text = f": {e.text}" if e.text else ""
            return f"Notice on node {e.node} ({e.source}{left}){text}; {_ACTIONS[e.action]}", "warning"
        case Stopping():
            return f"Stopping at step {e.step:,}: {stop_reason(e)}", "warning"
        case ExportFailed():
            return f"The model of step {e.step:,} was not exported: {e.error}", "warning"
        case GenerationEnded(node=0):
            return f"Generation {e.generation} {e.outcome}", _TONES[e.outcome]
    return None


def _checkpoint_line(e: Event) -> Line | None:
    match e:
        case Restored():
            return f"Restored step {e.step:,} of generation {e.from_generation} in {duration(e.seconds)}", "plain"
        case CheckpointSaved():
            took = duration(e.committed_seconds or e.seconds)
            return f"Checkpoint at step {e.step:,}: {size(e.bytes)} in {took}", "good"
        case CheckpointSkipped():
            steps = " and ".join(f"{step:,}" for step in e.under_way)
            return f"Checkpoint at step {e.step:,} skipped: those of steps {steps} were not done", "warning"
        case CheckpointFailed():
            how = "failed" if e.retried_on else "abandoned"
            on = f" on {e.tier}" if e.tier and e.retried_on else ""
            then = f"; it goes to {e.retried_on}" if e.retried_on else ""
            return f"Checkpoint at step {e.step:,} {how}{on}: {e.error}{then}", "warning"
        case CheckpointAlert():
            left = "no checkpoint exists" if e.newest is None else f"the newest checkpoint is of step {e.newest:,}"
            return f"{plural(e.failures, 'save')} failed in a row; {left}", "bad"
        case CheckpointDamaged():
            what = f"Checkpoint at step {e.step:,} of generation {e.from_generation}"
            return f"{what} is damaged on {e.tier}: {e.error}", "bad"
        case CheckpointVerified() if e.error is not None:
            return f"Part {e.part} of the checkpoint at step {e.step:,} was not read back: {e.error}", "warning"
        case CheckpointMisread():
            return f"Host {e.host} is not to be trusted with checkpoints: {e.error}", "bad"
        case CheckpointCopied() if e.error is not None:
            return f"Checkpoint at step {e.step:,} was not copied to {e.tier}: {e.error}", "warning"
        case CheckpointCopied():
            return f"Checkpoint at step {e.step:,} copied to {e.tier} in {duration(e.seconds)}", "good"
        case CheckpointsPruned() if e.error is not None:
            return f"Old checkpoints on {e.tier} were not removed: {e.error}", "warning"
        case CheckpointsPruned() if e.commits or e.attempts:
            steps = ", ".join(f"{step:,}" for _, step in e.commits)
            removed = [f"checkpoints at steps {steps}"] if steps else []
            removed += [f"what {plural(e.attempts, 'save')} without a commit left"] if e.attempts else []
            return f"Removed {' and '.join(removed)}: {size(e.bytes)}", "plain"
    return None


def _failure_line(e: Event) -> Line | None:
    match e:
        case WorkerExited(exit_code=code) if code == PEER_LOST:
            return f"Rank {e.worker} on node {e.node} lost its peers", "warning"
        case WorkerExited():
            reason = f": {e.reason}" if e.reason else ""
            return f"Rank {e.worker} on node {e.node} ended, {exit_words(e)}{reason}", "bad"
        case PeerSuspected():
            return f"Node {e.node} heard nothing of node {e.peer} for {duration(e.seconds)}", "warning"
        case FailureDetected():
            then = "the gang restarts in place" if e.action == "restart" else "this attempt ends"
            after = f"{duration(e.silent_seconds)} after its last sign of life"
            why = f"; {e.why}" if e.why else ""
            return f"First cause, {after}: {cause_in_words(first_cause(e))}{why}; {then}", "bad"
        case NodeChecked() if e.problem:
            return f"Rank {e.rank} on node {e.node} is not fit to train: {e.problem}", "bad"
        case SlowNode() if e.share:
            share = percent(e.share)
            return f"Node {e.slow_node} is slow: the others wait for it {share} of their time", "warning"
        case SlowNode():
            return f"Node {e.slow_node} is no longer slow", "good"
        case ScriptEndedLate():
            end = f"was ended after its script's last line, with exit code {e.exit_code}"
            why = f"it had made no progress for {duration(e.seconds)}"
            return f"Rank {e.worker} on node {e.node} {end}: {why}", "warning"
        case EventsDropped():
            whose = f"the agent of node {e.node}" if e.rank is None else f"rank {e.rank}"
            lost = f"{plural(e.events, 'event')} of {whose} lost"
            return f"{lost}: the storage did not take the log for too long", "warning"
    return None


E = TypeVar("E", GangStopped, NoticeSources, StorageBad, StorageGood)


def _node_moments(events: Sequence[Event]) -> list[Moment]:
    """Moments that several nodes report, each at about the same time: one line for all of them."""
    return [
        *map(_stopped_moment, _group_by_time(events, GangStopped, lambda e: e.generation)),
        *map(_sources_moment, _group_by_time(events, NoticeSources, lambda e: (e.generation, *e.answering))),
        *map(_storage_bad_moment, _group_by_time(events, StorageBad, lambda e: e.tier)),
        *map(_storage_good_moment, _group_by_time(events, StorageGood, lambda e: e.tier)),
    ]


def _group_by_time(events: Iterable[Event], kind: type[E], key: Callable[[E], Hashable]) -> list[list[E]]:
    """Groups of one key in which no node is twice, oldest first."""
    groups: list[list[E]] = []
    newest: dict[Hashable, list[E]] = {}
    for event in events:
        if isinstance(event, kind):
            group = newest.get(key(event))
            if group is None or event.t - group[0].t > TOGETHER_SECONDS or any(e.node == event.node for e in group):
                group = newest[key(event)] = []
                groups.append(group)
            group.append(event)
    return groups


def _stopped_moment(group: list[GangStopped]) -> Moment:
    slowest = max(e.seconds for e in group)
    text = f"No worker is left on {nodes_in_words(e.node for e in group)}, within {duration(slowest)}"
    return Moment(t=group[-1].t, text=text)


def _sources_moment(group: list[NoticeSources]) -> Moment:
    nodes, answering = nodes_in_words(e.node for e in group), ", ".join(group[0].answering)
    text = f"Notices on {nodes} come from {answering}" if answering else f"No notice source on {nodes}"
    return Moment(t=group[0].t, text=text)


def _storage_bad_moment(group: list[StorageBad]) -> Moment:
    nodes = nodes_in_words(e.node for e in group)
    return Moment(t=group[0].t, text=f"Storage {group[0].tier} on {nodes}: {group[0].problem}", tone="warning")


def _storage_good_moment(group: list[StorageGood]) -> Moment:
    nodes, longest = nodes_in_words(e.node for e in group), max(e.seconds for e in group)
    text = f"Storage {group[0].tier} works again on {nodes}, after {duration(longest)}"
    return Moment(t=group[-1].t, text=text, tone="good")


def nodes_in_words(nodes: Iterable[int]) -> str:
    """`node 1`, `nodes 0 to 3`, `nodes 0, 2, 5` or `70 nodes`."""
    numbers = sorted(set(nodes))
    if len(numbers) == 1:
        return f"node {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"nodes {numbers[0]} to {numbers[-1]}"
    if len(numbers) > _MAX_NODES_NAMED:
        return f"{len(numbers)} nodes"
    return f"nodes {', '.join(map(str, numbers))}"
