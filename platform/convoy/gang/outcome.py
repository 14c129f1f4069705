"""How a gang ends, as each of its nodes tells it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from convoy.gang.diagnosis.verdict import End, Finished, Preempted, Stopped, cause_message
from convoy.job.events.types import INTERRUPT

PREEMPTED = "preempted: "
INTERRUPTED = "interrupted: "
"""What the message begins with of a gang that ended for a notice; the second one where a person ended its run."""


class Outcome(BaseModel):
    """How the gang ended: the same on all its nodes."""

    model_config = ConfigDict(frozen=True)

    outcome: Literal["finished", "stopped", "preempted", "failed"]
    message: str = ""
    """For a failure the first cause in plain words, with the worker's last lines; for a preemption the notice."""
    retryable: bool = True
    """Of a failure: another attempt may do better."""


class PreemptedError(RuntimeError):
    """The attempt ended for a notice, and a later one goes on; the text is the notice. No fault of the job."""

    headline = "Convoy: preempted"


def outcome_of(verdict: End | Finished | Preempted | Stopped) -> Outcome:
    """What the gang's end is to whoever started it."""
    match verdict:
        case Finished():
            return Outcome(outcome="finished")
        case Stopped():
            return Outcome(outcome="stopped")
        case End(cause):
            return Outcome(outcome="failed", message=cause_message(cause), retryable=cause.retryable)
        case Preempted(notice, cause):
            told = f"{PREEMPTED}node {notice.node} had a notice {notice.reason}"
            if notice.reason.startswith(mark := f"({INTERRUPT}): "):
                told = f"{INTERRUPTED}{notice.reason.removeprefix(mark)}"
            meanwhile = "" if cause is None else f"\nbefore the gang had ended for it, {cause_message(cause)}"
            return Outcome(outcome="preempted", message=told + meanwhile)
