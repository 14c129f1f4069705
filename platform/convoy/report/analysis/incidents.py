"""What went wrong in a job: why each generation that failed did and how the job resumed; what is wrong now. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from convoy.job.events.gang import cause_in_words
from convoy.job.events.registry import (
    Event,
    FailureKind,
    GangStopped,
    ScriptStep,
    SlowNode,
    StepDone,
    StorageBad,
    StorageGood,
    WorkerReady,
)
from convoy.report.analysis.lineage import by_generation
from convoy.report.analysis.outcome import ending_notice, first_failure, outcome_of
from convoy.report.train_report import CurrentStraggler, Generation, Incident, StorageTrouble


def incidents(events: Sequence[Event], formed: Sequence[Generation]) -> tuple[Incident, ...]:
    """The incidents of the whole log, oldest first. formed: its generations, as `outcome.generations` gives them.

    A preemption is one, though nothing may be lost by it; that all ranks agreed to stop is none.
    """
    logged = by_generation(events)
    progress = {number: _step_times(own) for number, own in logged.items()}
    rows = []
    for i, generation in enumerate(formed):
        if generation.outcome in ("preempted", "failed", "ended without a word"):
            own, later = logged[generation.number], formed[i + 1 :]
            if later:  # what a superseded generation still wrote was never read
                own = [e for e in own if e.t <= later[0].started] or own
            rows.append(_incident(generation, own, later, progress))
    return tuple(rows)


class _StepTimes(NamedTuple):
    """When a generation's first step was done, and when each logged one."""

    first_step: float | None
    steps: list[tuple[float, int]]


def _step_times(events: Sequence[Event]) -> _StepTimes:
    steps = [(e.t, e.step) for e in events if isinstance(e, StepDone | ScriptStep)]
    ready = [e.t for e in events if isinstance(e, WorkerReady) and e.phase == "first_step" and e.rank == 0]
    return _StepTimes(min([*ready, *(t for t, _ in steps[:1])], default=None), steps)


@dataclass(frozen=True)
class _Cause:
    t: float
    happened: float
    """When, as far as is known."""
    kind: FailureKind | Literal["preempted", "unknown"]
    node: int | None
    rank: int | None
    what: str
    detected_s: float | None = None
    step: int = 0


def _incident(
    generation: Generation, events: Sequence[Event], later: Sequence[Generation], step_times: Mapping[int, _StepTimes]
) -> Incident:
    cause = _cause(generation, events)
    done = [e.step for e in events if isinstance(e, StepDone | ScriptStep)]
    last = max([*done, cause.step, generation.parent_step or 0])
    stopped = [e.t for e in events if isinstance(e, GangStopped)]
    after = [step_times[g.number] for g in later]
    again = [each.first_step for each in after if each.first_step is not None]
    beyond = [t for each in after for t, step in each.steps if step > last]

    def seconds_until(times: Sequence[float]) -> float | None:
        return max(min(times) - cause.happened, 0.0) if times else None

    return Incident(
        t=cause.t,
        generation=generation.number,
        kind=cause.kind,
        node=cause.node,
        rank=cause.rank,
        what=cause.what,
        step=last,
        detected_s=cause.detected_s,
        stopped_s=seconds_until([max(stopped)] if stopped else []),
        recovered_s=seconds_until(again),
        beyond_s=seconds_until(beyond),
        steps_recomputed=max(last - (later[0].parent_step or 0), 0) if later else None,
        then=_how_resumed(generation, later),
    )


def _cause(generation: Generation, events: Sequence[Event]) -> _Cause:
    outcome, notice, settled = outcome_of(events), ending_notice(events), first_failure(events)
    if generation.outcome == "preempted":
        t = notice.t if notice else events[-1].t
        return _Cause(t, t, "preempted", notice.node if notice else None, None, outcome.reason)
    if outcome.cause is None:
        t = events[-1].t
        return _Cause(t, t, "unknown", None, None, f"generation {generation.number} {generation.outcome}")
    cause, silent = outcome.cause, settled.silent_seconds if settled else None
    return _Cause(
        t=cause.t,
        happened=cause.t - (silent or 0.0),
        kind=cause.kind,
        node=cause.node,
        rank=cause.rank,
        what=cause_in_words(cause),
        detected_s=silent,
        step=settled.step if settled else 0,
    )


def _how_resumed(
    generation: Generation, later: Sequence[Generation]
) -> Literal["restarted in place", "next attempt", "next run", "not gone on"]:
    if not later:
        return "not gone on"
    if later[0].run != generation.run:
        return "next run"
    return "restarted in place" if later[0].attempt == generation.attempt else "next attempt"


def storage_troubles(events: Sequence[Event], formed: Sequence[Generation]) -> tuple[StorageTrouble, ...]:
    """Tiers that some node of the newest attempt cannot reach, or that are full. formed: the log's generations."""
    ours = newest_attempt_generations(formed)
    bad: dict[tuple[str, int], StorageBad] = {}
    for event in events:
        if isinstance(event, StorageBad) and event.generation in ours:
            bad[event.tier, event.node] = event
        elif isinstance(event, StorageGood):
            bad.pop((event.tier, event.node), None)
    return tuple(
        StorageTrouble(
            tier=tier,
            problem=min((e for e in bad.values() if e.tier == tier), key=lambda e: e.t).problem,
            since=min(e.t for e in bad.values() if e.tier == tier),
            nodes=tuple(sorted(e.node for e in bad.values() if e.tier == tier)),
        )
        for tier in dict.fromkeys(tier for tier, _ in bad)
    )


def slow_nodes(newest: Sequence[Event]) -> tuple[CurrentStraggler, ...]:
    """Nodes that the others wait for. newest: the events of the newest generation."""
    last = {e.slow_node: e for e in newest if isinstance(e, SlowNode)}
    return tuple(CurrentStraggler(node=node, share=e.share, since=e.t) for node, e in sorted(last.items()) if e.share)


def newest_attempt_generations(formed: Sequence[Generation]) -> set[int]:
    """The generations of the newest attempt, formed in place one after the other. formed: those of the log."""
    if not formed:
        return set()
    newest = formed[-1]
    return {g.number for g in formed if (g.run, g.attempt) == (newest.run, newest.attempt)}
