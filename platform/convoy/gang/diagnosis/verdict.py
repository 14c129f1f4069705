"""What is to be done with a gang, given its agents' evidence, and how it ends. Pure, except for reading the history."""

import contextlib
import re
from collections.abc import Sequence

from pydantic import ValidationError

from convoy.gang.async_call import BackgroundCall
from convoy.gang.decisions import (
    INTERRUPTED,
    PREEMPTED,
    End,
    Finished,
    GangOutcome,
    Preempted,
    Restart,
    Stopped,
    Verdict,
    Wait,
)
from convoy.gang.diagnosis.first_cause import AgentPlace, causes, due, failure, first
from convoy.gang.evidence import Evidence
from convoy.gang.task import EXPECTED
from convoy.job.events.failures import first_cause, in_words
from convoy.job.events.types import INTERRUPT, OUTAGE, FailureDetected, decode
from convoy.storage import Store, StoreUnavailable

REPEATS = 3
"""The same failure at the same step, this many times, is a bug that another start does not mend."""

MOST_WITHOUT_PROGRESS = 10
"""After this many failures in a row without a step beyond those before them, other machines may do better."""

HISTORY_SECONDS = 30.0
"""For the log of earlier attempts to be read."""

_WITHOUT_NODE = ("gone", "silent", "left", "agent")
"""Kinds of evidence each of which keeps the gang from continuing at its size."""


def judge(
    evidence: Sequence[Evidence], now: float, place: AgentPlace, history: Sequence[FailureDetected] = ()
) -> Verdict:
    """What follows from the evidence of one generation, in whatever order it arrived.

    history: the first causes of the job's earlier generations, oldest first. The first verdict other than Wait ends the
    generation: later evidence of it is not judged any more.
    """
    notices = [e for e in evidence if e.kind == "notice"]
    notice = min(notices, key=lambda e: (e.at, e.node), default=None)
    possible = causes(evidence, place)
    if place.leads:
        if len({e.rank for e in evidence if e.is_success}) == place.world_size:
            return _all_ended(evidence, notice)
    elif not any(_ends_without_leader(e, place) for e in possible):
        return Wait()
    settled = due(possible)
    if settled is not None and now >= settled:
        cause = failure(first(possible), evidence, now, place)
        if notice is not None:
            return Preempted(notice, cause)
        return _restart_or_end(cause, possible, evidence, history)
    over = min((e.deadline for e in notices if e.deadline is not None), default=None)
    if notice is not None and over is not None and now >= over:
        return Preempted(notice)
    return Wait(min((t for t in (settled, over) if t is not None), default=None))


def repeats(history: Sequence[FailureDetected], cause: FailureDetected) -> int:
    """How often a worker failed in this way at this step, this time included; numbers in its reason may differ.

    0 for what is not the program's fault: a lost node, a worker that was stopped.
    """
    if cause.cause not in ("exited", "exited_early", "hung"):
        return 0
    return 1 + sum(_signature(earlier) == _signature(cause) for earlier in history)


def failures_without_progress(history: Sequence[FailureDetected], cause: FailureDetected) -> int:
    """How many failures in a row, this one included, came no step beyond all those before them."""
    furthest, row = -1, 0
    for failed in (*history, cause):
        row = 0 if failed.step > furthest else row + 1
        furthest = max(furthest, failed.step)
    return row


def _all_ended(evidence: Sequence[Evidence], notice: Evidence | None) -> Verdict:
    if not any(e.exit_code for e in evidence if e.is_success):
        return Finished()
    return Stopped() if notice is None else Preempted(notice)


def _ends_without_leader(item: Evidence, place: AgentPlace) -> bool:
    return item.kind in _WITHOUT_NODE and (item.kind != "agent" or item.node == place.node)


def _restart_or_end(
    cause: FailureDetected,
    possible: Sequence[Evidence],
    evidence: Sequence[Evidence],
    history: Sequence[FailureDetected],
) -> Restart | End:
    if cause.cause == "exited" and cause.exit_code in (EXPECTED, OUTAGE):
        return End(cause.model_copy(update={"retryable": cause.exit_code == OUTAGE}))
    if cause.cause == "unfit" or any(e.kind in _WITHOUT_NODE for e in possible):
        return End(cause)
    node = _without_store(evidence)
    if node is not None:
        return _end(cause, f"node {node} does not reach the store, without which no generation can be formed")
    if repeats(history, cause) >= REPEATS:
        why = f"the same failure at step {cause.step:,}, {REPEATS} times: it is not tried again"
        return _end(cause, why, retryable=False)
    if failures_without_progress(history, cause) >= MOST_WITHOUT_PROGRESS:
        return _end(cause, f"{MOST_WITHOUT_PROGRESS} failures in a row came no step beyond those before them")
    return Restart(cause.model_copy(update={"action": "restart"}))


def _end(cause: FailureDetected, why: str, *, retryable: bool = True) -> End:
    return End(cause.model_copy(update={"why": why, "retryable": retryable}))


def _without_store(evidence: Sequence[Evidence]) -> int | None:
    """The first node whose newest report is that it does not reach the store."""
    last = {e.node: e.ok for e in sorted(evidence, key=lambda e: e.at) if e.kind == "store"}
    return min((node for node, ok in last.items() if not ok), default=None)


def _signature(cause: FailureDetected) -> tuple[object, ...]:
    reason = re.sub(r"0x[0-9a-f]+|\d+", "#", cause.reason)
    return cause.cause, cause.exit_code, cause.signal, reason, cause.step


class FailureHistory:
    """The first causes of earlier attempts, as soon as they have been read, followed by this attempt's own."""

    def __init__(self, store: Store, first: int) -> None:
        """first: generation of this attempt. Starts to read."""
        self._earlier = BackgroundCall("the earlier log", lambda: earlier_failures(store, first), HISTORY_SECONDS)
        self._own: list[FailureDetected] = []

    def add(self, cause: FailureDetected) -> None:
        self._own.append(cause)

    def failures(self) -> list[FailureDetected]:
        """Oldest first. Does not wait."""
        if self._earlier.is_over:
            with contextlib.suppress(StoreUnavailable):
                return [*self._earlier.result(), *self._own]
        return self._own


def earlier_failures(store: Store, before: int) -> list[FailureDetected]:
    """As node 0's agents logged them, oldest first, for as many generations below `before` as a verdict looks at.

    Nothing is logged where node 0 itself was lost, which was not the job's fault. Raises StoreUnavailable.
    """
    failures: list[FailureDetected] = []
    for generation in range(max(1, before - MOST_WITHOUT_PROGRESS), before):
        for name in store.sizes(f"events/{generation:06d}/00000/agent"):
            for line in store.read(name).splitlines():
                with contextlib.suppress(ValidationError):  # another version's event, or half a line
                    event = decode(line)
                    failures += [event] if isinstance(event, FailureDetected) else []
    return failures


def outcome_of(decision: End | Finished | Preempted | Stopped) -> GangOutcome:
    """What the gang's end means to whoever started it."""
    match decision:
        case Finished() | Stopped():
            return GangOutcome(outcome=decision.kind)
        case End(cause):
            return GangOutcome(outcome="failed", message=cause_message(cause), retryable=cause.retryable)
        case Preempted(notice, cause):
            message = f"{PREEMPTED}node {notice.node} had a notice {notice.reason}"
            if notice.reason.startswith(mark := f"({INTERRUPT}): "):
                message = f"{INTERRUPTED}{notice.reason.removeprefix(mark)}"
            meanwhile = "" if cause is None else f"\nbefore the gang had ended for it, {cause_message(cause)}"
            return GangOutcome(outcome="preempted", message=message + meanwhile)


def cause_message(cause: FailureDetected) -> str:
    """The first cause in plain words, with the worker's last lines: the text that the step fails with."""
    if cause.cause == "exited" and cause.exit_code in (EXPECTED, OUTAGE) and cause.reason:
        return cause.reason
    lines = [in_words(first_cause(cause)), *([cause.why] if cause.why else [])]
    if cause.log_tail and cause.cause != "unfit":
        lines += ["its last lines:", *(f"  {line}" for line in cause.log_tail.splitlines())]
    return "\n".join(lines)
