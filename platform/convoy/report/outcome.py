"""How each generation ended, and why the next one began."""

from collections.abc import Sequence
from typing import Literal

from convoy.events.types import (
    PEER_LOST,
    AnyEvent,
    GenerationEnded,
    GenerationStarted,
    StepDone,
    Stopping,
    WorkerExited,
)
from convoy.report.lineage import starts
from convoy.report.train_report import FirstCause, Generation, Outcome

_ENDINGS: dict[str, str] = {
    "max_hours": "the limit budget.max_hours was reached",
    "max_cost_usd": "the limit budget.max_cost_usd was reached",
    "nonfinite": "too many steps in a row were not finite",
    "requested": "it was asked to stop",
}


def outcome_of(events: Sequence[AnyEvent]) -> Outcome:
    """How the newest generation of these events stands."""
    newest = max((e.generation for e in events), default=0)
    return _outcome([e for e in events if e.generation == newest])


def ending(stop: Stopping) -> str:
    """Why a job stopped, in words."""
    return f"{_ENDINGS[stop.reason]}: {stop.detail}" if stop.detail else _ENDINGS[stop.reason]


def exit_words(exited: WorkerExited | FirstCause) -> str:
    """How a worker ended: its signal, or its exit code."""
    if exited.signal:
        return f"killed by {exited.signal}"
    if exited.exit_code is not None:
        return f"exit code {exited.exit_code}"
    return "no exit code was seen"


def generations(events: Sequence[AnyEvent]) -> tuple[Generation, ...]:
    """Every generation of the log, abandoned ones too."""
    found: list[Generation] = []
    numbers = sorted({e.generation for e in events})
    known = starts(events)
    for number in numbers:
        own = [e for e in events if e.generation == number]
        start = known.get(number, GenerationStarted(generation=number))
        previous = found[-1] if found else None
        found.append(_generation(own, start, previous, events, newest=number == numbers[-1]))
    return tuple(found)


def _outcome(own: Sequence[AnyEvent]) -> Outcome:
    ended = {e.outcome for e in own if isinstance(e, GenerationEnded)}
    leader = next((e.outcome for e in own if isinstance(e, GenerationEnded) and e.node == 0), None)
    exits = [e for e in own if isinstance(e, WorkerExited)]
    if "failed" in ended or (exits and leader is None):
        return Outcome(state="failed", cause=_first_cause(exits))
    if leader == "stopped":
        stops = [e for e in own if isinstance(e, Stopping)]
        return Outcome(state="stopped", reason=ending(stops[-1]) if stops else "no reason was logged")
    return Outcome(state="finished") if leader == "finished" else Outcome(state="running")


def _first_cause(exits: Sequence[WorkerExited]) -> FirstCause | None:
    if not exits:
        return None
    # A worker that lost a peer is a consequence, even where its host's clock is ahead of the cause's.
    first = min(exits, key=lambda e: (e.exit_code == PEER_LOST, e.t))
    return FirstCause(
        t=first.t, generation=first.generation, node=first.node, rank=first.worker, exit_code=first.exit_code,
        signal=first.signal, reason=first.reason, log_tail=first.log_tail,
    )  # fmt: skip


def _generation(
    own: Sequence[AnyEvent],
    start: GenerationStarted,
    previous: Generation | None,
    events: Sequence[AnyEvent],
    newest: bool,
) -> Generation:
    state: Literal["running", "finished", "stopped", "failed", "ended without a word"] = _outcome(own).state
    return Generation(
        number=start.generation,
        run=start.run,
        nodes=start.nodes,
        world_size=start.world_size,
        parent_generation=start.parent_generation,
        parent_step=start.parent_step,
        why=_why(start, previous, events),
        started=min(e.t for e in own),
        seconds=max(e.t for e in own) - min(e.t for e in own),
        last_step=max((e.step for e in own if isinstance(e, StepDone)), default=start.parent_step or 0),
        outcome="ended without a word" if state == "running" and not newest else state,
    )


def _why(start: GenerationStarted, previous: Generation | None, events: Sequence[AnyEvent]) -> str:
    if previous is None:
        return "first start"
    if start.generation > previous.number + 1 and start.parent_step is not None:
        # Every gang logs its generation; the one between, which logged nothing, was made by a rewind.
        return f"rewound to step {start.parent_step:,}"
    before = _outcome([e for e in events if e.generation == previous.number])
    if before.state == "failed" and before.cause:
        return f"rank {before.cause.rank} on node {before.cause.node} failed ({exit_words(before.cause)})"
    if before.state == "failed":
        return f"generation {previous.number} failed"
    if before.state == "stopped":
        return f"continues after a stop: {before.reason}"
    if before.state == "finished":
        return "continues a finished job"
    return f"generation {previous.number} ended without a word"
