"""What agents observe of a gang and send each other: the evidence from which the first cause is determined."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from convoy.gang.task import STOPPED
from convoy.job.events.types import PEER_LOST

EvidenceKind = Literal["exited", "stopped", "hung", "gone", "silent", "left", "agent", "store", "notice"]
"""exited, stopped (by a signal), hung: a worker. gone (its connection closed), silent, left (it said goodbye): the
agent of `node`, as `by` observed it. agent: `node` cannot continue, or (with exit_code UNFIT) its machine is not fit to
train. store: whether `node` reaches the store. notice: the gang must end, since `node` will be taken away or is to be
drained."""


class Evidence(BaseModel):
    """One observation. Times are `time.monotonic()` of the agent that holds it."""

    model_config = ConfigDict(frozen=True)

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

    def received(self, now: float, shift: float) -> "Evidence":
        """The same, from another agent, by this agent's clock. shift: this agent's clock minus the other's."""
        deadline = None if self.deadline is None else self.deadline + shift
        return self.model_copy(update={"at": self.at + shift, "noticed": now, "deadline": deadline})

    @property
    def is_of_worker(self) -> bool:
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
