"""What agents see of a gang and tell each other: the evidence from which the first cause is found."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from convoy.gang.assignment import STOPPED
from convoy.job.events.types import PEER_LOST

SignKind = Literal["exited", "stopped", "hung", "gone", "silent", "left", "agent", "store", "notice"]
"""exited, stopped (by a signal), hung: a worker. gone (its connection closed), silent, left (it said goodbye): the
agent of `node`, as `by` saw it. agent: `node` cannot go on, or (with exit_code UNFIT) its machine is not fit to train.
store: whether `node` reaches the store. notice: the gang was told to end, for `node` will be taken away or is to be
drained."""


class Sign(BaseModel):
    """One observation. Times are `time.monotonic()` of the agent that holds it."""

    model_config = ConfigDict(frozen=True)

    kind: SignKind
    node: int
    """Which it is about."""
    by: int
    """Node of the agent that saw it."""
    at: float
    """When it happened: the last sign of life of what hangs or is silent."""
    seen: float
    """When this agent came to know of it."""
    rank: int | None = None
    step: int = 0
    """Steps the rank had done."""
    progress: tuple[int, int, int] = (0, 0, 0)
    """Of a rank that hangs: step, order of the phase, count. Who hangs first is the one that came least far."""
    exit_code: int | None = None
    signal: str | None = None
    reason: str = ""
    log_tail: str = ""
    finishing: bool | None = None
    """Of a worker that ended with success: whether it had come to its end; None: it has no progress board."""
    by_us: bool = False
    """Its agent had killed it."""
    lasting: bool = False
    """Of an agent that cannot go on: another attempt would not do better."""
    ok: bool = True
    """Of the store: it answers again."""
    deadline: float | None = None
    """Of a notice: when the machine goes."""

    def told(self, now: float) -> dict[str, Any]:
        """As plain data for another agent, whose clock is another one: times as seconds ago."""
        away = None if self.deadline is None else self.deadline - now
        return self.model_dump(mode="json") | {"at": now - self.at, "seen": 0.0, "deadline": away}

    @classmethod
    def heard(cls, body: dict[str, Any], now: float) -> "Sign":
        """The sign that another agent told, in this one's time. Raises pydantic.ValidationError."""
        sign = cls.model_validate(body)
        deadline = None if sign.deadline is None else now + sign.deadline
        return sign.model_copy(update={"at": now - sign.at, "seen": now, "deadline": deadline})

    @property
    def of_a_worker(self) -> bool:
        """Of no account any more when the gang has new workers."""
        return self.kind in ("exited", "stopped", "hung")

    @property
    def well(self) -> bool:
        """A worker that ended with success, at the last step or where all agreed to stop."""
        return self.kind == "exited" and self.exit_code in (0, STOPPED) and self.finishing is not False

    @property
    def lost_peer(self) -> bool:
        """A worker that ended because another one was gone."""
        return self.kind == "exited" and self.exit_code == PEER_LOST
