"""What the agents of a gang decide together, and how its end is reported."""

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict

from convoy.gang.evidence import Evidence
from convoy.job.events.types import FailureDetected

PREEMPTED = "preempted: "
INTERRUPTED = "interrupted: "
"""How the message begins of a gang that ended for a notice; the second one where a person ended its run."""


@dataclass(frozen=True)
class Wait:
    """Nothing is to be done; judge again at `until` (monotonic seconds) even if there is no new evidence."""

    until: float | None = None


@dataclass(frozen=True)
class Finished:
    """Every worker reached its end."""

    kind: Literal["finished"] = "finished"


@dataclass(frozen=True)
class Stopped:
    """All ranks agreed to end before the last step, and did."""

    kind: Literal["stopped"] = "stopped"


@dataclass(frozen=True)
class Preempted:
    """The attempt ends for a notice: all ranks ended as agreed, or one failed meanwhile, or the time is over."""

    notice: Evidence
    cause: FailureDetected | None = None
    """What kept them from ending as agreed; None also where the time is over."""
    kind: Literal["preempted"] = "preempted"

    def received(self, now: float, shift: float) -> "Preempted":
        """As `Evidence.received`."""
        return replace(self, notice=self.notice.received(now, shift))


@dataclass(frozen=True)
class Restart:
    """All agents are there: form the next generation in place."""

    cause: FailureDetected
    kind: Literal["restart"] = "restart"


@dataclass(frozen=True)
class End:
    """This attempt is over. `cause.retryable`: another one may do better."""

    cause: FailureDetected
    kind: Literal["end"] = "end"


Decision = Restart | End | Preempted | Finished | Stopped
"""A verdict that ends a generation."""

Verdict = Wait | Decision


class GangOutcome(BaseModel):
    """How the gang ended: the same on all its nodes."""

    model_config = ConfigDict(frozen=True)

    outcome: Literal["finished", "stopped", "preempted", "failed"]
    message: str = ""
    """For a failure the first cause in plain words, with the worker's last lines; for a preemption the notice."""
    retryable: bool = True
    """Another attempt may do better after this failure."""


class PreemptedError(RuntimeError):
    """The attempt ended for a notice, and a later one resumes; the text is the notice. It is not the job's fault."""

    headline = "Convoy: preempted"
