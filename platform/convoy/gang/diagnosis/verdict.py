"""The first cause of a gang's failure, given its agents' evidence, what is done about it, and how the gang ends. Pure,
except for reading the history.

A failure shows in many places at once: a killed worker, and workers that lost their peer, perhaps noticed before it. So
nothing is decided for a short time after the first possible cause, and the cause is then the earliest one; what may be
a consequence counts only where there is nothing else.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from convoy.gang.async_call import BackgroundCall
from convoy.gang.messages import (
    INTERRUPTED,
    PREEMPTED,
    EndAttempt,
    Evidence,
    Finished,
    GangOutcome,
    Preempted,
    Restart,
    Stopped,
    Verdict,
    Wait,
)
from convoy.gang.task import EXPECTED, Node
from convoy.job.events.gang import cause_in_words, first_cause
from convoy.job.events.registry import INTERRUPT, OUTAGE, UNFIT, FailureDetected, FailureKind, decode
from convoy.storage import Store, StoreUnavailable

SETTLE_SECONDS = 0.2
"""After the first possible cause, evidence of an earlier one may still be in transit from another node."""

PEERS_SECONDS = 2.0
"""After a worker lost a peer: a node must be silent for about this long before it is known to be lost."""

LEAD_SECONDS = 0.1
"""A consequence is noticed at most this long before its cause: exits are noticed in any order, and over a network."""


REPEATS = 3
"""The same failure at the same step, this many times, is a bug that another start does not mend."""

MAX_WITHOUT_PROGRESS = 10
"""After this many failures in a row without a step beyond those before them, other machines may do better."""

HISTORY_SECONDS = 30.0
"""For the log of earlier attempts to be read."""

_WITHOUT_NODE = ("gone", "silent", "left", "agent")
"""Kinds of evidence each of which keeps the gang from continuing at its size."""


def _settled_at(possible: Sequence[Evidence]) -> float | None:
    """When the time is over in which an earlier cause could still be noticed; None: there is no possible cause."""
    waits = [e.noticed + (PEERS_SECONDS if e.is_lost_peer else SETTLE_SECONDS) for e in possible]
    return min(waits, default=None)


def _failure_event(cause: Evidence, evidence: Sequence[Evidence], now: float, here: Node) -> FailureDetected:
    """The event for a first cause, before it is known what follows."""
    # After a partition that heals at once both sides report silences: what counts is the node that they have in common.
    apart = _isolated_node(evidence, here) if cause.kind == "silent" else None
    cut_off = apart == here.index
    return FailureDetected(
        cause="cut_off" if cut_off else _failure_kind(cause),
        failed_node=cause.node if apart is None else apart,
        worker=cause.rank,
        exit_code=cause.exit_code,
        signal=cause.signal,
        reason="" if cut_off else cause.reason,
        log_tail=cause.log_tail,
        step=cause.step,
        silent_seconds=max(now - cause.at, 0.0),
        retryable=not cause.lasting,
    )


def _possible_causes(evidence: Sequence[Evidence], here: Node) -> Iterator[Evidence]:
    """The evidence that can be a first cause."""
    done = {node for node in range(here.nodes) if _is_done(node, evidence, here)}
    others_fail = any(e.kind == "hung" or e.is_lost_peer for e in evidence)
    for e in evidence:
        match e.kind:
            case "exited" if e.by_us:
                pass
            case "exited" if e.is_success:
                # Without a progress board it is unknown whether it was at its end: the others show it.
                if e.exit_code == 0 and e.finishing is None and others_fail:
                    yield e
            case "gone" | "left" if e.node in done:
                pass
            case "exited" | "stopped" | "hung" | "gone" | "silent" | "left" | "agent":
                yield e


def _is_done(node: int, evidence: Sequence[Evidence], here: Node) -> bool:
    ended = {e.rank for e in evidence if e.is_success and e.node == node}
    return len(ended) == here.nproc_per_node


def _precedence(e: Evidence) -> tuple[int, tuple[int, int, int], float, int, int, str]:
    """The least is the first cause: by kind of evidence, for hangs by how far the rank came, then by time."""
    # Workers fail when a peer or its node is gone. A process does not die by a signal because of that, except by
    # SIGABRT, with which a communication library may end it.
    hard = e.kind in ("gone", "silent", "stopped") or (e.signal is not None and e.signal != "SIGABRT")
    return _kind_order(e), e.progress, e.at - (LEAD_SECONDS if hard else 0.0), e.node, e.rank or 0, e.kind


def _kind_order(e: Evidence) -> int:
    if e.is_lost_peer:
        return 4
    if e.kind == "hung":
        return 3  # a rank that waits for another one hangs as well
    if e.kind == "left":
        return 2  # it knew why, and may have reported it
    return 1 if e.is_success else 0


def _failure_kind(e: Evidence) -> FailureKind:
    match e.kind:
        case "exited" | "agent" if e.exit_code == UNFIT:
            return "unfit"
        case "exited" if e.is_lost_peer:
            return "link_lost"
        case "exited" if e.exit_code == 0:
            return "exited_early"
        case "stopped" | "hung":
            return e.kind
        case "silent":
            return "node_silent"
        case "gone" | "left":
            return "node_gone"
        case "agent":
            return "agent_failed"
        case _:
            return "exited"


def _isolated_node(evidence: Sequence[Evidence], here: Node) -> int | None:
    """The node that no other one hears, or that hears no other one; this node, if that holds for several. None: there
    is none, or there are only two nodes, neither of which can know whose fault it is."""
    pairs = {frozenset((e.node, e.by)) for e in evidence if e.kind == "silent" and e.node != e.by}
    apart = [node for node in range(here.nodes) if sum(node in pair for pair in pairs) == here.nodes - 1 > 1]
    return here.index if here.index in apart else next(iter(apart), None)


def judge(evidence: Sequence[Evidence], now: float, here: Node, history: Sequence[FailureDetected] = ()) -> Verdict:
    """What follows from the evidence of one generation, in whatever order it arrived.

    here: the node whose agent judges. Node 0's decides for all, another one only that it cannot continue without a lost
    node. history: the first causes of the job's earlier generations, oldest first. The first verdict other than Wait
    ends the generation: later evidence of it is not judged any more.
    """
    notices = [e for e in evidence if e.kind == "notice"]
    notice = min(notices, key=lambda e: (e.at, e.node), default=None)
    possible = list(_possible_causes(evidence, here))
    if here.leads:
        if len({e.rank for e in evidence if e.is_success}) == here.world_size:
            return _verdict_when_all_succeeded(evidence, notice)
    elif not any(_lets_follower_end(e, here) for e in possible):
        return Wait()
    settled = _settled_at(possible)
    if settled is not None and now >= settled:
        cause = _failure_event(min(possible, key=_precedence), evidence, now, here)
        if notice is not None:
            return Preempted(notice, cause)
        return _restart_or_end(cause, possible, evidence, history)
    over = min((e.deadline for e in notices if e.deadline is not None), default=None)
    if notice is not None and over is not None and now >= over:
        return Preempted(notice)
    return Wait(min((t for t in (settled, over) if t is not None), default=None))


def repeat_count(history: Sequence[FailureDetected], cause: FailureDetected) -> int:
    """How often a worker failed in this way at this step, this time included; numbers in its reason may differ.

    0 for what is not the program's fault: a lost node, a worker that was stopped.
    """
    if cause.cause not in ("exited", "exited_early", "hung"):
        return 0
    return 1 + sum(_failure_signature(earlier) == _failure_signature(cause) for earlier in history)


def failures_without_progress(history: Sequence[FailureDetected], cause: FailureDetected) -> int:
    """How many failures in a row, this one included, came no step beyond all those before them."""
    furthest, row = -1, 0
    for failed in (*history, cause):
        row = 0 if failed.step > furthest else row + 1
        furthest = max(furthest, failed.step)
    return row


def _verdict_when_all_succeeded(evidence: Sequence[Evidence], notice: Evidence | None) -> Verdict:
    if not any(e.exit_code for e in evidence if e.is_success):
        return Finished()
    return Stopped() if notice is None else Preempted(notice)


def _lets_follower_end(item: Evidence, here: Node) -> bool:
    return item.kind in _WITHOUT_NODE and (item.kind != "agent" or item.node == here.index)


def _restart_or_end(
    cause: FailureDetected,
    possible: Sequence[Evidence],
    evidence: Sequence[Evidence],
    history: Sequence[FailureDetected],
) -> Restart | EndAttempt:
    if cause.cause == "exited" and cause.exit_code in (EXPECTED, OUTAGE):
        return EndAttempt(cause.model_copy(update={"retryable": cause.exit_code == OUTAGE}))
    if cause.cause == "unfit" or any(e.kind in _WITHOUT_NODE for e in possible):
        return EndAttempt(cause)
    node = _node_without_store(evidence)
    if node is not None:
        return _end_because(cause, f"node {node} does not reach the store, without which no generation can be formed")
    if repeat_count(history, cause) >= REPEATS:
        why = f"the same failure at step {cause.step:,}, {REPEATS} times: it is not tried again"
        return _end_because(cause, why, retryable=False)
    if failures_without_progress(history, cause) >= MAX_WITHOUT_PROGRESS:
        return _end_because(cause, f"{MAX_WITHOUT_PROGRESS} failures in a row came no step beyond those before them")
    return Restart(cause.model_copy(update={"action": "restart"}))


def _end_because(cause: FailureDetected, why: str, *, retryable: bool = True) -> EndAttempt:
    return EndAttempt(cause.model_copy(update={"why": why, "retryable": retryable}))


def _node_without_store(evidence: Sequence[Evidence]) -> int | None:
    """The first node whose newest report is that it does not reach the store."""
    last = {e.node: e.ok for e in sorted(evidence, key=lambda e: e.at) if e.kind == "store"}
    return min((node for node, ok in last.items() if not ok), default=None)


def _failure_signature(cause: FailureDetected) -> tuple[object, ...]:
    reason = re.sub(r"0x[0-9a-f]+|\d+", "#", cause.reason)
    return cause.cause, cause.exit_code, cause.signal, reason, cause.step


class FailureHistory:
    """The first causes of earlier attempts, as soon as they have been read, followed by this attempt's own."""

    def __init__(self, store: Store, first: int) -> None:
        """first: generation of this attempt. Starts to read."""
        self._earlier = BackgroundCall("the earlier log", lambda: read_earlier_failures(store, first), HISTORY_SECONDS)
        self._own: list[FailureDetected] = []

    def add(self, cause: FailureDetected) -> None:
        self._own.append(cause)

    def failures(self) -> list[FailureDetected]:
        """Oldest first. Does not wait."""
        if self._earlier.is_over:
            with contextlib.suppress(StoreUnavailable):
                return [*self._earlier.result(), *self._own]
        return self._own


def read_earlier_failures(store: Store, before_generation: int) -> list[FailureDetected]:
    """As node 0's agents logged them, oldest first, for as many generations before that one as a verdict looks at.

    Nothing is logged where node 0 itself was lost, which was not the job's fault. Raises StoreUnavailable.
    """
    failures: list[FailureDetected] = []
    for generation in range(max(1, before_generation - MAX_WITHOUT_PROGRESS), before_generation):
        for name in store.sizes(f"events/{generation:06d}/00000/agent"):
            for line in store.read(name).splitlines():
                with contextlib.suppress(ValidationError):  # another version's event, or half a line
                    event = decode(line)
                    failures += [event] if isinstance(event, FailureDetected) else []
    return failures


def outcome_of(decision: EndAttempt | Finished | Preempted | Stopped) -> GangOutcome:
    """What the gang's end means to whoever started it."""
    match decision:
        case Finished() | Stopped():
            return GangOutcome(outcome=decision.kind)
        case EndAttempt(cause):
            return GangOutcome(outcome="failed", message=cause_message(cause))
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
    lines = [cause_in_words(first_cause(cause)), *([cause.why] if cause.why else [])]
    if cause.log_tail and cause.cause != "unfit":
        lines += ["its last lines:", *(f"  {line}" for line in cause.log_tail.splitlines())]
    return "\n".join(lines)
