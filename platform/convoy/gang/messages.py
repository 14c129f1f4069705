"""What the agents of a gang observe, decide and send each other, and how the gang's end is reported."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from convoy.gang.task import STOPPED
from convoy.gang.workers.board import Mark
from convoy.job.events.registry import PEER_LOST, FailureDetected
from convoy.job.lineage import Generation

EvidenceKind = Literal["exited", "stopped", "hung", "gone", "silent", "left", "agent", "store", "notice"]
"""exited, stopped (by a signal), hung: a worker. gone (its connection closed), silent, left (it said goodbye): the
agent of `node`, as `by` observed it. agent: `node` cannot continue, or (with exit_code UNFIT) its machine is not fit to
train. store: whether `node` reaches the store. notice: the gang must end, since `node` will be reclaimed or is to be
drained."""


PREEMPTED = "preempted: "

INTERRUPTED = "interrupted: "
"""How the message begins of a gang that ended for a notice; the second one where a person ended its run."""


class Evidence(BaseModel, frozen=True):
    """One observation. Times are `time.monotonic()` of the agent that holds it."""

    kind: EvidenceKind
    node: int
    """The node that it is about."""
    by: int
    """Node of the agent that observed it."""
    at: float
    """When it happened: for a rank that hangs or a node that is silent, its last sign of life."""
    noticed: float
    """When this agent learned of it."""
    rank: int | None = None
    step: int = 0
    """Steps that the rank had done."""
    progress: tuple[int, int, int] = (0, 0, 0)
    """Of a rank that hangs: step, order of the phase, count. The rank that came least far hangs first."""
    exit_code: int | None = None
    signal: str | None = None
    reason: str = ""
    log_tail: str = ""
    finishing: bool | None = None
    """Whether a worker that ended with success had reached its end; None: it has no progress board."""
    by_us: bool = False
    """Its agent had killed it."""
    lasting: bool = False
    """The agent cannot continue, and another attempt would not do better."""
    ok: bool = True
    """The store answers again."""
    deadline: float | None = None
    """When the machine of a notice goes."""

    def on_own_clock(self, now: float, shift: float) -> "Evidence":
        """The same, from another agent, by this agent's clock. shift: this agent's clock minus the other's."""
        deadline = None if self.deadline is None else self.deadline + shift
        return self.model_copy(update={"at": self.at + shift, "noticed": now, "deadline": deadline})

    @property
    def lapses_with_generation(self) -> bool:
        """Irrelevant once the gang has new workers."""
        return self.kind in ("exited", "stopped", "hung")

    @property
    def is_success(self) -> bool:
        """A worker ended with success, at the last step or where all agreed to stop."""
        return self.kind == "exited" and self.exit_code in (0, STOPPED) and self.finishing is not False

    @property
    def is_lost_peer(self) -> bool:
        """A worker ended because another one was gone."""
        return self.kind == "exited" and self.exit_code == PEER_LOST


def own_evidence(kind: EvidenceKind, node: int, now: float, **facts: object) -> Evidence:
    """What a node's agent notices now of the node itself, and what happened now unless `at` says otherwise."""
    return Evidence.model_validate({"kind": kind, "node": node, "by": node, "at": now, "noticed": now, **facts})


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

    def on_own_clock(self, now: float, shift: float) -> "Preempted":
        """As `Evidence.on_own_clock`."""
        return replace(self, notice=self.notice.on_own_clock(now, shift))


@dataclass(frozen=True)
class Restart:
    """All agents are there: form the next generation in place."""

    cause: FailureDetected
    kind: Literal["restart"] = "restart"


@dataclass(frozen=True)
class EndAttempt:
    """This attempt is over. `cause.retryable`: another one may do better."""

    cause: FailureDetected
    kind: Literal["end"] = "end"


Decision = Restart | EndAttempt | Preempted | Finished | Stopped
"""A verdict that ends a generation."""

Verdict = Wait | Decision


class GangOutcome(BaseModel, frozen=True):
    """How the gang ended: the same on all its nodes."""

    outcome: Literal["finished", "stopped", "preempted", "failed"]
    message: str = ""
    """For a failure the first cause in plain words, with the worker's last lines; for a preemption the notice."""


class PreemptedError(RuntimeError):
    """The attempt ended for a notice, and a later one resumes; the text is the notice. It is not the job's fault."""

    headline = "Convoy: preempted"


class Message(BaseModel, frozen=True):
    """What an agent has to say to others. All times are by the sender's clock."""

    generation: int
    """That the sender is in."""
    sent: float
    """When, by `time.monotonic()`."""
    evidence: list[Evidence] = []
    """What the sender observed."""
    marks: dict[int, Mark] = {}
    """To node 0: how far the sender's workers are, by rank."""
    decision: Annotated[Decision, Field(discriminator="kind")] | None = None
    """From node 0: the generation is over, and what follows."""
    formed: Generation | None = None
    """From node 0: start your workers of this generation, whose object exists."""

    def body(self) -> dict[str, Any]:
        """The form that `Peers.send` takes."""
        return self.model_dump(mode="json")
