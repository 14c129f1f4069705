"""What the agents of a formed gang tell each other: signs to all, marks to node 0, decisions from it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from convoy.gang.diagnosis.verdict import End, Finished, Preempted, Restart, Stopped
from convoy.gang.evidence import Sign
from convoy.gang.workers.board import Mark
from convoy.job.events.types import FailureDetected
from convoy.job.lineage import Generation

Decision = Restart | End | Preempted | Finished | Stopped
"""A verdict that ends a generation."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True)

    generation: int

    def body(self) -> dict[str, Any]:
        """As `Peers.send` takes it."""
        return self.model_dump(mode="json")


class Seen(_Message):
    """What the sender saw, in the generation that it was in."""

    kind: Literal["seen"] = "seen"
    signs: list[dict[str, Any]]

    @classmethod
    def of(cls, generation: int, signs: Sequence[Sign], now: float) -> "Seen":
        return cls(generation=generation, signs=[sign.told(now) for sign in signs])

    def heard(self, now: float) -> list[Sign]:
        return [Sign.heard(body, now) for body in self.signs]


class Where(_Message):
    """To node 0: where the sender's workers are."""

    kind: Literal["where"] = "where"
    marks: dict[int, dict[str, Any]]
    """By rank."""

    @classmethod
    def of(cls, generation: int, marks: Mapping[int, Mark], now: float) -> "Where":
        return cls(generation=generation, marks={rank: mark.to_wire(now) for rank, mark in marks.items()})

    def heard(self, now: float) -> dict[int, Mark]:
        return {rank: Mark.from_wire(body, now) for rank, body in self.marks.items()}


class Decided(_Message):
    """From node 0: the generation is over, and what follows."""

    kind: Literal["decided"] = "decided"
    what: Literal["restart", "end", "preempted", "finished", "stopped"]
    cause: FailureDetected | None = None
    notice: dict[str, Any] | None = None

    @classmethod
    def of(cls, generation: int, decision: Decision, now: float) -> "Decided":
        match decision:
            case Restart(cause):
                return cls(generation=generation, what="restart", cause=cause)
            case End(cause):
                return cls(generation=generation, what="end", cause=cause)
            case Preempted(notice, cause):
                return cls(generation=generation, what="preempted", cause=cause, notice=notice.told(now))
            case Finished():
                return cls(generation=generation, what="finished")
            case Stopped():
                return cls(generation=generation, what="stopped")

    def decision(self, now: float) -> Decision:
        """Raises ValueError where a cause or a notice is missing."""
        match self:
            case Decided(what="finished"):
                return Finished()
            case Decided(what="stopped"):
                return Stopped()
            case Decided(what="preempted", notice=notice) if notice is not None:
                return Preempted(Sign.heard(notice, now), self.cause)
            case Decided(what="restart", cause=cause) if cause is not None:
                return Restart(cause)
            case Decided(what="end", cause=cause) if cause is not None:
                return End(cause)
        raise ValueError(f"a decision without its cause: {self.what}")


class Go(_Message):
    """From node 0: start your workers of this generation, whose object exists."""

    kind: Literal["go"] = "go"
    formed: Generation

    @classmethod
    def of(cls, formed: Generation) -> "Go":
        return cls(generation=formed.generation, formed=formed)


Message = Annotated[Seen | Where | Decided | Go, Field(discriminator="kind")]

MESSAGES: TypeAdapter[Message] = TypeAdapter(Message)
