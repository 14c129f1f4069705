"""What the log says of what a writer process reports."""

from typing import Any

import pytest

from convoy.checkpoint.messages import PartVerified
from convoy.job.events.types import CheckpointDamaged, CheckpointMisread, CheckpointVerified, Event
from convoy.job.lineage import CommitRef
from convoy.training.checkpointing.save_events import SaveEvents


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({}, CheckpointVerified),
        ({"error": "away"}, CheckpointVerified),
        ({"error": "a flipped bit", "damaged": True}, CheckpointDamaged),
        ({"error": "a reads it wrongly", "misread_by": "a"}, CheckpointMisread),
    ],
)
def test_what_was_read_back_is_one_event(told: dict[str, Any], kind: type[Event]) -> None:
    events = list[Event]()
    observer = SaveEvents(_Events(events), ["/fsx"], parts=2, first=False, alert_after=3)  # type: ignore[arg-type]
    ref = CommitRef(generation=1, step=10)
    observer.report(PartVerified(ref=ref, tier="/fsx", part=1, seconds=0.5, **told))
    (event,) = events
    assert type(event) is kind
    shown = event.model_dump()
    assert (shown["from_generation"], shown["step"], shown["tier"]) == (1, 10, "/fsx")
    assert shown["error"] == told.get("error")
    assert shown.get("host", "a") == "a"


class _Events:
    def __init__(self, kept: list[Event]) -> None:
        self.append = kept.append
