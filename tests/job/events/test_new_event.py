"""A kind of event is added by one class and one element of EVENTS: it is written, read, shown and reported."""

import json
import time
from pathlib import Path
from typing import Literal

import pytest

from convoy.job.events import types
from convoy.job.events.event import Event
from convoy.job.events.log import EventReader, EventWriter, read_events
from convoy.job.events.types import GenerationStarted, StepDone, encode
from convoy.report.fold import fold
from convoy.report.tail import lines
from convoy.report.train_report import to_json
from convoy.storage import Store, open_store


class ClockStepped(Event):
    """A machine's clock was set."""

    kind: Literal["clock_stepped"] = "clock_stepped"
    seconds: float

    def timeline_text(self) -> str:
        return f"The clock of node {self.node} was set by {self.seconds:g} s"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Of a job whose log holds a step and the made-up event."""
    store = open_store(str(tmp_path))
    writer = EventWriter(store, 1, 0)
    for event in (GenerationStarted(), StepDone(step=1, loss=1, grad_norm=1, lr=1, tokens=8, seconds=1.0)):
        writer.append(event)
    writer.append(ClockStepped(seconds=float("inf")))
    writer.close()
    return store


def test_before_it_is_added_it_is_counted_as_of_another_version(store: Store) -> None:
    reader = EventReader(store)

    assert [type(event) for event in reader.poll()] == [GenerationStarted, StepDone]
    assert (reader.unknown, reader.damaged) == (1, 0)


def test_one_element_has_it_read_shown_and_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "EVENTS", (*types.EVENTS, ClockStepped))
    *_, read = events = read_events(store)

    assert isinstance(read, ClockStepped)
    assert (read.seconds, read.generation, read.node, read.rank) == (float("inf"), 1, 0, None)
    assert json.loads(encode(read))["kind"] == "clock_stepped"
    text = "The clock of node 0 was set by inf s"
    assert lines(events)[-1] == f"{time.strftime('%H:%M:%S', time.localtime(read.t))}  {text}"
    assert text in [moment["text"] for moment in to_json(fold(events, None))["timeline"]]
