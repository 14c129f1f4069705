"""How each generation ended, and why the next one began."""

from collections.abc import Mapping, Sequence
from typing import Literal

from convoy.events.types import (
    PEER_LOST,
    AnyEvent,
    FailureDetected,
    GenerationEnded,
    GenerationStarted,
    NoticeSeen,
    StepDone,
    Stopping,
    WorkerExited,
)
from convoy.report.causes import first_cause, in_words
from convoy.report.lineage import by_generation, starts
from convoy.report.train_report import FirstCause, Generation, Outcome

_ENDINGS: dict[str, str] = {
    "max_hours": "the limit budget.max_hours was reached",
    "max_cost_usd": "the limit budget.max_cost_usd was reached",
    "nonfinite": "too many steps in a row were not finite",
    "requested": "it was asked to stop",
    "preempted": "a machine will be taken away",
    "preempted_unsaved": "a machine will be taken away, too soon to save first",
}


def outcome_of(events: Sequence[AnyEvent]) -> Outcome:
    """How the newest generation of these events stands; between two that are formed in place, the gang is running."""
    newest = max((e.generation for e in events), default=0)
    own = [e for e in events if e.generation == newest]
    outcome = _outcome(own)
    told = _failures(own)
    if outcome.state == "failed" and told and told[-1].action == "restart":
        return Outcome(state="running", cause=outcome.cause)
    return outcome


def ending(stop: Stopping) -> str:
    """Why a job stopped, in words."""
    return f"{_ENDINGS[stop.reason]}: {stop.detail}" if stop.detail else _ENDINGS[stop.reason]


def generations(events: Sequence[AnyEvent]) -> tuple[Generation, ...]:
    """Every generation of the log, abandoned ones too."""
    found: list[Generation] = []
    logged = by_generation(events)
    outcomes = {number: _outcome(own) for number, own in logged.items()}
    known = starts(events)
    for number, own in logged.items():
        start = known.get(number, GenerationStarted(generation=number))
        previous = found[-1] if found else None
        why = _why(start, previous, outcomes)
        found.append(_generation(own, start, why, outcomes[number], newest=number == max(logged)))
    return tuple(found)


def failure_of(own: Sequence[AnyEvent]) -> FailureDetected | None:
    """The first cause that the agents settled on for a generation, given its events."""
    told = _failures(own)
    return told[0] if told else None


def ending_notice(own: Sequence[AnyEvent]) -> NoticeSeen | None:
    """The first notice for which a generation ended, given its events."""
    return next((e for e in own if isinstance(e, NoticeSeen) and e.action in ("save_and_end", "end")), None)


def _failures(own: Sequence[AnyEvent]) -> list[FailureDetected]:
    """What node 0's agent told or, where it was lost, the others: in order of time."""
    told = [e for e in own if isinstance(e, FailureDetected)]
    return [e for e in told if e.node == 0] or told


def _outcome(own: Sequence[AnyEvent]) -> Outcome:
    ended = {e.outcome for e in own if isinstance(e, GenerationEnded)}
    leader = next((e.outcome for e in own if isinstance(e, GenerationEnded) and e.node == 0), None)
    exits = [e for e in own if isinstance(e, WorkerExited)]
    settled = failure_of(own)
    cause = first_cause(settled) if settled else _first_exit(exits)
    if leader == "preempted" or (leader is None and "preempted" in ended):
        return Outcome(state="preempted", reason=_notice(own), cause=cause)
    if "failed" in ended or (leader is None and cause is not None):
        return Outcome(state="failed", cause=cause)
    if leader == "stopped":
        stops = [e for e in own if isinstance(e, Stopping)]
        return Outcome(state="stopped", reason=ending(stops[-1]) if stops else "no reason was logged")
    return Outcome(state="finished") if leader == "finished" else Outcome(state="running")


def _notice(own: Sequence[AnyEvent]) -> str:
    """Why the attempt was preempted, in words."""
    seen = ending_notice(own)
    if seen is not None:
        return f"node {seen.node} had a notice ({seen.source})" + (f": {seen.text}" if seen.text else "")
    stops = [e for e in own if isinstance(e, Stopping)]
    return ending(stops[-1]) if stops else "no notice was logged"


def _first_exit(exits: Sequence[WorkerExited]) -> FirstCause | None:
    """The first cause in a log of before agents told it."""
    if not exits:
        return None
    # A worker that lost a peer is a consequence, even where its host's clock is ahead of the cause's.
    first = min(exits, key=lambda e: (e.exit_code == PEER_LOST, e.t))
    return FirstCause(
        t=first.t, generation=first.generation, node=first.node, rank=first.worker, exit_code=first.exit_code,
        signal=first.signal, reason=first.reason, log_tail=first.log_tail,
    )  # fmt: skip


def _generation(
    own: Sequence[AnyEvent], start: GenerationStarted, why: str, outcome: Outcome, newest: bool
) -> Generation:
    state: Literal["running", "finished", "stopped", "preempted", "failed", "ended without a word"] = outcome.state
    return Generation(
        number=start.generation,
        run=start.run,
        attempt=start.attempt,
        nodes=start.nodes,
        world_size=start.world_size,
        training=start.training,
        parent_generation=start.parent_generation,
        parent_step=start.parent_step,
        why=why,
        started=min(e.t for e in own),
        seconds=max(e.t for e in own) - min(e.t for e in own),
        last_step=max((e.step for e in own if isinstance(e, StepDone)), default=start.parent_step or 0),
        outcome="ended without a word" if state == "running" and not newest else state,
    )


def _why(start: GenerationStarted, previous: Generation | None, outcomes: Mapping[int, Outcome]) -> str:
    if previous is None:
        return "first start"
    if start.generation > previous.number + 1 and start.parent_step is not None:
        # Every gang logs its generation; the one between, which logged nothing, was made by a rewind.
        return f"rewound to step {start.parent_step:,}"
    before = outcomes[previous.number]
    if before.state == "failed" and before.cause:
        return in_words(before.cause.model_copy(update={"reason": ""}))
    if before.state == "failed":
        return f"generation {previous.number} failed"
    if before.state == "stopped":
        return f"continues after a stop: {before.reason}"
    if before.state == "preempted":
        return f"continues after a preemption: {before.reason}"
    if before.state == "finished":
        return "continues a finished job"
    return f"generation {previous.number} ended without a word"
