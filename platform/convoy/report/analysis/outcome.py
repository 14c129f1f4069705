"""How each generation ended, and why the next one began."""

from collections.abc import Mapping, Sequence

from convoy.display.formatting import duration
from convoy.job.events.gang import FirstCause, cause_in_words, first_cause
from convoy.job.events.registry import (
    INTERRUPT,
    PEER_LOST,
    Environment,
    Event,
    FailureDetected,
    GenerationEnded,
    GenerationStarted,
    NoticeReceived,
    StepDone,
    Stopping,
    WorkerExited,
)
from convoy.job.heartbeat import HERE, Heartbeat
from convoy.report.analysis.lineage import by_generation, generation_starts
from convoy.report.train_report import Generation, Outcome, TrainReport

_ENDINGS: dict[str, str] = {
    "max_hours": "the limit budget.max_hours was reached",
    "max_cost_usd": "the limit budget.max_cost_usd was reached",
    "nonfinite": "too many steps in a row were not finite",
    "requested": "a stop was requested",
    "preempted": "it had a notice",
    "preempted_unsaved": "it had a notice that left no time to save first",
}

_WORDS = {INTERRUPT: "interrupted", "drain": "drained"}
"""The state after a preemption that somebody requested, by its notice's source."""


def outcome_of(events: Sequence[Event], heartbeat: Heartbeat | None = HERE) -> Outcome:
    """The outcome of the newest generation of these events; between two that are formed in place, the gang is running.

    heartbeat: of the job; None: no run marks it as running. Without a live one a gang that its log does not end is
    lost: nothing was left to write more.
    """
    newest = max((e.generation for e in events), default=0)
    own = [e for e in events if e.generation == newest]
    outcome = _generation_outcome(own)
    failures = _failures(own)
    if outcome.state == "failed" and failures and failures[-1].action == "restart":
        outcome = Outcome(state="running", cause=outcome.cause)
    if outcome.state == "running" and not (heartbeat is not None and heartbeat.live):
        return Outcome(state="lost", reason=_why_lost(heartbeat, bool(events)), cause=outcome.cause)
    return outcome


def state_word(report: TrainReport) -> str:
    """The job's state in a word, which is the same wherever it is shown."""
    outcome = report.outcome
    if outcome.state == "running":
        if outcome.notice:
            return "ending"
        return "restarting" if outcome.cause else "running" if report.step or report.steps else "starting"
    if outcome.state == "lost" and not report.generations:
        return "not started"
    return _WORDS.get(outcome.notice, outcome.state)


def _why_lost(heartbeat: Heartbeat | None, began: bool) -> str:
    if heartbeat is not None:
        return f"{heartbeat.by} ended without a word: its last heartbeat was {duration(heartbeat.seconds)} ago"
    how = "its log does not say how the last run ended" if began else "it has not begun"
    return f"no run is working on this job, and {how}"


def stop_reason(stop: Stopping) -> str:
    """Why a job stopped, in words."""
    return f"{_ENDINGS[stop.reason]}: {stop.detail}" if stop.detail else _ENDINGS[stop.reason]


def generations(events: Sequence[Event], heartbeat: Heartbeat | None = HERE) -> tuple[Generation, ...]:
    """Every generation of the log, abandoned ones too. heartbeat: as `outcome_of` takes it."""
    formed: list[Generation] = []
    logged, started = by_generation(events), generation_starts(events)
    outcomes = {number: _generation_outcome(own) for number, own in logged.items()}
    for number, own in logged.items():
        start = started.get(number, GenerationStarted(generation=number))
        why = _why_started(start, formed[-1] if formed else None, outcomes)
        is_live = number == max(logged) and heartbeat is not None and heartbeat.live
        formed.append(_generation(own, start, why, outcomes[number], is_live=is_live))
    return tuple(formed)


def first_failure(events: Sequence[Event]) -> FailureDetected | None:
    """The first cause that the agents settled on for a generation, given its events."""
    return next(iter(_failures(events)), None)


def ending_notice(events: Sequence[Event]) -> NoticeReceived | None:
    """The first notice for which a generation ended, given its events."""
    return next((e for e in events if isinstance(e, NoticeReceived) and e.action in ("save_and_end", "end")), None)


def _failures(events: Sequence[Event]) -> list[FailureDetected]:
    """What node 0's agent reported or, where it was lost, the others: in order of time."""
    failures = [e for e in events if isinstance(e, FailureDetected)]
    return [e for e in failures if e.node == 0] or failures


def _generation_outcome(events: Sequence[Event]) -> Outcome:
    ended = {e.outcome for e in events if isinstance(e, GenerationEnded)}
    leader = next((e.outcome for e in events if isinstance(e, GenerationEnded) and e.node == 0), None)
    settled, notice = first_failure(events), ending_notice(events)
    source = notice.source if notice else ""
    cause = first_cause(settled) if settled else _first_exit_cause(events)
    if leader == "preempted" or (leader is None and "preempted" in ended):
        return Outcome(state="preempted", reason=_notice_in_words(events, notice), notice=source, cause=cause)
    if "failed" in ended or (leader is None and cause is not None):
        return Outcome(state="failed", cause=cause)
    if leader == "stopped":
        return Outcome(state="stopped", reason=_last_stop_reason(events) or "no reason was logged")
    if leader == "finished":
        return Outcome(state="finished")
    return Outcome(state="running", reason=_notice_in_words(events, notice) if notice else "", notice=source)


def _notice_in_words(events: Sequence[Event], notice: NoticeReceived | None) -> str:
    """Why the attempt was preempted."""
    if notice is None:
        return _last_stop_reason(events) or "no notice was logged"
    if notice.source == INTERRUPT:
        return notice.text  # which all nodes get
    return f"node {notice.node} had a notice ({notice.source})" + (f": {notice.text}" if notice.text else "")


def _last_stop_reason(events: Sequence[Event]) -> str:
    """Why the ranks agreed to stop; empty: they did not."""
    return next((stop_reason(e) for e in reversed(events) if isinstance(e, Stopping)), "")


def _first_exit_cause(events: Sequence[Event]) -> FirstCause | None:
    """The first cause in a log of before agents reported it."""
    exits = [e for e in events if isinstance(e, WorkerExited)]
    if not exits:
        return None
    # A worker that lost a peer is a consequence, even where its host's clock is ahead of the cause's.
    first = min(exits, key=lambda e: (e.exit_code == PEER_LOST, e.t))
    return FirstCause(
        t=first.t, generation=first.generation, node=first.node, rank=first.worker, exit_code=first.exit_code,
        signal=first.signal, reason=first.reason, log_tail=first.log_tail,
    )  # fmt: skip


def _generation(
    events: Sequence[Event], start: GenerationStarted, why: str, outcome: Outcome, *, is_live: bool
) -> Generation:
    silent = outcome.state == "running" and not is_live
    return Generation(
        number=start.generation,
        run=start.run,
        attempt=start.attempt,
        nodes=start.nodes,
        world_size=start.world_size,
        training=start.training,
        engine=next((e.engine for e in events if isinstance(e, Environment)), ""),
        parent_generation=start.parent_generation,
        parent_step=start.parent_step,
        why=why,
        started=min(e.t for e in events),
        seconds=max(e.t for e in events) - min(e.t for e in events),
        last_step=max((e.step for e in events if isinstance(e, StepDone)), default=start.parent_step or 0),
        outcome="ended without a word" if silent or outcome.state == "lost" else outcome.state,
    )


def _why_started(start: GenerationStarted, previous: Generation | None, outcomes: Mapping[int, Outcome]) -> str:
    if previous is None:
        return "first start"
    if start.generation > previous.number + 1 and start.parent_step is not None:
        # Every gang logs its generation; the one between, which logged nothing, was made by a rewind.
        return f"rewound to step {start.parent_step:,}"
    before = outcomes[previous.number]
    if before.state == "failed" and before.cause:
        return cause_in_words(before.cause.model_copy(update={"reason": ""}))
    if before.state == "failed":
        return f"generation {previous.number} failed"
    match before.state:
        case "stopped":
            return f"continues after a stop: {before.reason}"
        case "preempted":
            return f"continues after a preemption: {before.reason}"
        case "finished":
            return "continues a finished job"
    return f"generation {previous.number} ended without a word"
