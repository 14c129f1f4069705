"""What the agents of a formed gang send each other: evidence to all, marks to node 0, decisions from it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from convoy.gang.decisions import Decision
from convoy.gang.evidence import Evidence
from convoy.gang.workers.board import Mark
from convoy.job.lineage import Generation


class _Message(BaseModel):
    """All times in a message are by the sender's clock."""

    model_config = ConfigDict(frozen=True)

    generation: int
    sent: float = 0.0
    """When, by `time.monotonic()` of the sender."""

    def body(self) -> dict[str, Any]:
        """The form that `Peers.send` takes."""
        return self.model_dump(mode="json")


class EvidenceMessage(_Message):
    """What the sender observed, in the generation that it was in."""

    kind: Literal["evidence"] = "evidence"
    evidence: list[Evidence]


class MarksMessage(_Message):
    """To node 0: how far the sender's workers are, by rank."""

    kind: Literal["marks"] = "marks"
    marks: dict[int, Mark]


class DecisionMessage(_Message):
    """From node 0: the generation is over, and what follows."""

    kind: Literal["decision"] = "decision"
    decision: Annotated[Decision, Field(discriminator="kind")]


class StartMessage(_Message):
    """From node 0: start your workers of this generation, whose object exists."""

    kind: Literal["start"] = "start"
    formed: Generation


Message = Annotated[EvidenceMessage | MarksMessage | DecisionMessage | StartMessage, Field(discriminator="kind")]

MESSAGES: TypeAdapter[Message] = TypeAdapter(Message)
