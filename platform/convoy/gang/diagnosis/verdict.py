"""What is to be done with a gang, from what its agents saw. Pure: the clock is passed in."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from convoy.gang.assignment import EXPECTED
from convoy.gang.diagnosis.first_cause import Seat, causes, due, failure, first
from convoy.gang.evidence import Sign
from convoy.job.events.failures import first_cause, in_words
from convoy.job.events.types import OUTAGE, FailureDetected

REPEATS = 3
"""The same failure at the same step, so many times, is a bug that another start does not mend."""

FRUITLESS = 10
"""After so many failures in a row that came no step beyond those before them, other machines may do better."""

_WITHOUT_NODE = ("gone", "silent", "left", "agent")
"""Signs of which each alone keeps the gang from going on at its size."""


@dataclass(frozen=True)
class Wait:
    """Nothing is to be done; judge again at `until` (monotonic seconds) though nothing new was seen."""

    until: float | None = None


@dataclass(frozen=True)
class Finished:
    """Every worker came to its end."""


@dataclass(frozen=True)
class Stopped:
    """All ranks agreed to end before the last step, and did."""


@dataclass(frozen=True)
class Preempted:
    """The attempt ends for a notice: all ranks ended as agreed, or one failed meanwhile, or the time is over."""

    notice: Sign
    cause: FailureDetected | None = None
    """What kept them from ending as agreed; None too where the time is over."""


@dataclass(frozen=True)
class Restart:
    """All agents are there: form the next generation in place."""

    cause: FailureDetected


@dataclass(frozen=True)
class End:
    """This attempt is over. `cause.retryable`: another one may do better."""

    cause: FailureDetected


Verdict = Wait | Finished | Stopped | Preempted | Restart | End


def judge(signs: Sequence[Sign], now: float, seat: Seat, history: Sequence[FailureDetected] = ()) -> Verdict:
    """What follows from the signs of one generation, in whatever order they came.

    history: the first causes of the job's earlier generations, oldest first. The first verdict but Wait ends the
    generation: what it shows afterwards is not judged any more.
    """
    notice = min((s for s in signs if s.kind == "notice"), key=lambda s: (s.at, s.node), default=None)
    found = causes(signs, seat)
    if seat.leads:
        if len({s.rank for s in signs if s.well}) == seat.world_size:
            return _all_ended(signs, notice)
    elif not any(_ends_without_leader(s, seat) for s in found):
        return Wait()
    settled = due(found)
    if settled is not None and now >= settled:
        cause = failure(first(found), signs, now, seat)
        if notice is not None:
            return Preempted(notice, cause)
        return _restart_or_end(cause, found, signs, history)
    over = min((s.deadline for s in signs if s.kind == "notice" and s.deadline is not None), default=None)
    if notice is not None and over is not None and now >= over:
        return Preempted(notice)
    return Wait(min((t for t in (settled, over) if t is not None), default=None))


def repeats(history: Sequence[FailureDetected], cause: FailureDetected) -> int:
    """How often a worker failed in this way at this step, this time included; numbers in its reason may differ.

    0 for what is no fault of the program: a lost node, a worker that was stopped.
    """
    if cause.cause not in ("exited", "exited_early", "hung"):
        return 0
    return 1 + sum(_signature(earlier) == _signature(cause) for earlier in history)


def fruitless(history: Sequence[FailureDetected], cause: FailureDetected) -> int:
    """How many failures in a row, this one included, came no step beyond all those before them."""
    furthest, row = -1, 0
    for failed in (*history, cause):
        row = 0 if failed.step > furthest else row + 1
        furthest = max(furthest, failed.step)
    return row


def cause_message(cause: FailureDetected) -> str:
    """The first cause in plain words, with the worker's last lines: what the step fails with."""
    if cause.cause == "exited" and cause.exit_code in (EXPECTED, OUTAGE) and cause.reason:
        return cause.reason
    lines = [in_words(first_cause(cause)), *([cause.why] if cause.why else [])]
    if cause.log_tail and cause.cause != "unfit":
        lines += ["its last lines:", *(f"  {line}" for line in cause.log_tail.splitlines())]
    return "\n".join(lines)


def _all_ended(signs: Sequence[Sign], notice: Sign | None) -> Verdict:
    if not any(s.exit_code for s in signs if s.well):
        return Finished()
    return Stopped() if notice is None else Preempted(notice)


def _ends_without_leader(sign: Sign, seat: Seat) -> bool:
    return sign.kind in _WITHOUT_NODE and (sign.kind != "agent" or sign.node == seat.node)


def _restart_or_end(
    cause: FailureDetected, found: Sequence[Sign], signs: Sequence[Sign], history: Sequence[FailureDetected]
) -> Restart | End:
    if cause.cause == "exited" and cause.exit_code in (EXPECTED, OUTAGE):
        return End(cause.model_copy(update={"retryable": cause.exit_code == OUTAGE}))
    if cause.cause == "unfit" or any(s.kind in _WITHOUT_NODE for s in found):
        return End(cause)
    node = _without_store(signs)
    if node is not None:
        return _end(cause, f"node {node} does not reach the store, without which no generation can be formed")
    if repeats(history, cause) >= REPEATS:
        why = f"the same failure at step {cause.step:,}, {REPEATS} times: it is not tried again"
        return _end(cause, why, retryable=False)
    if fruitless(history, cause) >= FRUITLESS:
        return _end(cause, f"{FRUITLESS} failures in a row came no step beyond those before them")
    return Restart(cause.model_copy(update={"action": "restart"}))


def _end(cause: FailureDetected, why: str, *, retryable: bool = True) -> End:
    return End(cause.model_copy(update={"why": why, "retryable": retryable}))


def _without_store(signs: Sequence[Sign]) -> int | None:
    """The first node whose last word was that it does not reach the store."""
    last = {s.node: s.ok for s in sorted(signs, key=lambda s: s.at) if s.kind == "store"}
    return min((node for node, ok in last.items() if not ok), default=None)


def _signature(cause: FailureDetected) -> tuple[object, ...]:
    reason = re.sub(r"0x[0-9a-f]+|\d+", "#", cause.reason)
    return cause.cause, cause.exit_code, cause.signal, reason, cause.step
