"""What went wrong in a job: why each generation that failed did and how the job resumed; what is wrong now. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from convoy.job.events.failures import in_words
from convoy.job.events.types import (
    AnyEvent,
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
from convoy.report.analysis.outcome import ending_notice, failure_of, outcome_of
from convoy.report.train_report import Generation, Incident, SlowNow, StorageTrouble


def incidents(events: Sequence[AnyEvent], formed: Sequence[Generation]) -> tuple[Incident, ...]:
    """Of the whole log, oldest first. formed: its generations, as `outcome.generations` gives them.

    A preemption is one, though nothing may be lost by it; that all ranks agreed to stop is none.
    """
    logged = by_generation(events)
    ways = {g: _way(own) for g, own in logged.items()}
    rows: list[Incident] = []
    for i, generation in enumerate(formed):
        if generation.outcome in ("preempted", "failed", "ended without a word"):
            later = formed[i + 1 :]
            own = logged[generation.number]
            # What a superseded generation still wrote was never read: the job had gone on without it.
            own = [e for e in own if not later or e.t <= later[0].started]
            rows.append(_incident(generation, own or logged[generation.number], later, ways))
    return tuple(rows)


@dataclass(frozen=True)
class _Way:
    """What a generation did: when its first step was done, and when each logged one."""

    first_step: float | None
    steps: tuple[tuple[float, int], ...]


def _way(own: Sequence[AnyEvent]) -> _Way:
    steps = tuple((e.t, e.step) for e in own if isinstance(e, StepDone | ScriptStep))
    ready = [e.t for e in own if isinstance(e, WorkerReady) and e.phase == "first_step" and e.rank == 0]
    return _Way(min([*ready, *(t for t, _ in steps[:1])], default=None), steps)


@dataclass(frozen=True)
class _Cause:
    t: float
    happened: float
    """When, as far as is known."""
    kind: FailureKind | str
    node: int | None
    rank: int | None
    what: str
    detected_s: float | None
    step: int = 0


def _incident(
    generation: Generation, own: Sequence[AnyEvent], later: Sequence[Generation], ways: dict[int, _Way]
) -> Incident:
    cause = _cause(generation, own)
    done = [e.step for e in own if isinstance(e, StepDone | ScriptStep)]
    last = max([*done, cause.step, generation.parent_step or 0])
    again = [first for g in later if (first := ways[g.number].first_step) is not None]
    beyond = [t for g in later for t, step in ways[g.number].steps if step > last]
    stopped = [e.t for e in own if isinstance(e, GangStopped)]

    def since(t: float | None) -> float | None:
        return None if t is None else max(t - cause.happened, 0.0)

    return Incident.model_validate(
        {
            "t": cause.t,
            "generation": generation.number,
            "kind": cause.kind,
            "node": cause.node,
            "rank": cause.rank,
            "what": cause.what,
            "step": last,
            "detected_s": cause.detected_s,
            "stopped_s": since(max(stopped, default=None)),
            "recovered_s": since(min(again, default=None)),
            "beyond_s": since(min(beyond, default=None)),
            "steps_recomputed": max(last - (later[0].parent_step or 0), 0) if later else None,
            "then": _then(generation, later),
        }
    )


def _cause(generation: Generation, own: Sequence[AnyEvent]) -> _Cause:
    settled, notice = failure_of(own), ending_notice(own)
    if generation.outcome == "preempted":
        what = outcome_of(own).reason
        if notice is None:
            return _Cause(own[-1].t, own[-1].t, "preempted", None, None, what, None)
        return _Cause(notice.t, notice.t, "preempted", notice.node, None, what, None)
    cause = outcome_of(own).cause
    if cause is None:
        what = f"generation {generation.number} {generation.outcome}"
        return _Cause(own[-1].t, own[-1].t, "unknown", None, None, what, None)
    silent = settled.silent_seconds if settled else None
    return _Cause(
        t=cause.t,
        happened=cause.t - (silent or 0.0),
        kind=cause.kind,
        node=cause.node,
        rank=cause.rank,
        what=in_words(cause),
        detected_s=silent,
        step=settled.step if settled else 0,
    )


def _then(generation: Generation, later: Sequence[Generation]) -> str:
    if not later:
        return "not gone on"
    if later[0].run != generation.run:
        return "next run"
    return "restarted in place" if later[0].attempt == generation.attempt else "next attempt"


def storage_troubles(events: Sequence[AnyEvent], formed: Sequence[Generation]) -> tuple[StorageTrouble, ...]:
    """Tiers that some node of the newest attempt does not reach, or that are full. formed: the log's generations."""
    ours = newest_attempt(formed)
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


def slow_nodes(newest: Sequence[AnyEvent]) -> tuple[SlowNow, ...]:
    """Nodes that the others wait for. newest: the events of the newest generation."""
    last = {e.slow_node: e for e in newest if isinstance(e, SlowNode)}
    return tuple(SlowNow(node=node, share=e.share, since=e.t) for node, e in sorted(last.items()) if e.share)


def newest_attempt(formed: Sequence[Generation]) -> set[int]:
    """Its generations, formed in place one after the other. formed: the log's."""
    if not formed:
        return set()
    newest = formed[-1]
    return {g.number for g in formed if (g.run, g.attempt) == (newest.run, newest.attempt)}
