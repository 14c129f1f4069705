"""What all events carry. An event is a fact that was seen; nothing in the log is ever changed.

Common fields: `t` Unix time in seconds, `generation` and `node` of the writer, `rank` of a worker (None: the agent).
Durations are in seconds, sizes in bytes. Losses are nats per token.
"""

from pydantic import BaseModel, ConfigDict


class Event(BaseModel):
    """What all events carry."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    t: float = 0.0
    generation: int = 0
    node: int = 0
    rank: int | None = None
    kind: str
    """The class's own constant, which its line in the log names."""

    def timeline_text(self) -> str:
        """Its line on the timeline, where `report/analysis/timeline.py` has none for its class; empty: no line."""
        return ""
