"""Events of a user's script under the gang."""

import math
from typing import Any, Literal

from pydantic import Field, field_validator

from convoy.job.events.event import Event


class ScriptResumed(Event):
    """A user's script told of its first step in this generation: it goes on from the one before (rank 0)."""

    kind: Literal["script_resumed"] = "script_resumed"
    step: int


class ScriptStep(Event):
    """How far a user's script is; not each step is told (rank 0)."""

    kind: Literal["script_step"] = "script_step"
    step: int
    seconds: float
    """Of a step, on average since the last such event."""


class ScriptEvent(Event):
    """What a user's script wants to be known."""

    kind: Literal["script_event"] = "script_event"
    name: str
    values: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    """A float that is not finite is the text NaN, Infinity or -Infinity, as it is written."""

    @field_validator("values")
    @classmethod
    def _finite(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: _written(value) for name, value in values.items()}


class ScriptEndedLate(Event):
    """A rank ended after its script's last line because nothing in it made progress any more (its node's agent)."""

    kind: Literal["script_ended_late"] = "script_ended_late"
    worker: int
    """Its rank."""
    exit_code: int
    """The script's own."""
    seconds: float
    """Since its last progress."""


def _written(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
