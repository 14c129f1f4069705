"""Every kind of event survives being written and read. One is added by one class and one element of EVENTS."""

import json
import time
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from convoy.job.events import registry
from convoy.job.events.log import EventWriter, read_events
from convoy.job.events.registry import (
    EVENTS,
    Event,
    GenerationStarted,
    RankThroughput,
    StepDone,
    WorkerExited,
    decode,
    encode,
)
from convoy.report.fold import fold
from convoy.report.tail import event_lines
from convoy.report.train_report import to_json
from convoy.storage import Store, open_store
from tests.campaign import examples

pytestmark = pytest.mark.campaign


def any_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    """Events with any value of its type in every field."""
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: st.from_type(hints[name]) for name in kind.model_fields if name != "kind"})


def same(one: Event, other: Event) -> bool:
    # By repr, because NaN differs from itself.
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.sampled(4)
@pytest.mark.processes
@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@examples(40)
@given(data=st.data())
def test_every_event_is_read_as_it_was_written(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(any_of(kind))
    assert same(decode(encode(event)), event)


@examples(100)
@given(data=st.data())
def test_an_event_is_one_line_of_plain_json(data: st.DataObject) -> None:
    line = encode(data.draw(st.one_of([any_of(kind) for kind in EVENTS])))
    assert b"\n" not in line

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    assert isinstance(json.loads(line, parse_constant=refuse), dict)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_comes_back_as_that_number(value: float) -> None:
    event = StepDone(step=1, loss=value, grad_norm=value, lr=0.1, tokens=10, seconds=1.0)
    again = decode(encode(event))
    assert isinstance(again, StepDone)
    assert repr(again.loss) == repr(again.grad_norm) == repr(value)


def test_each_kind_has_a_name_of_its_own() -> None:
    names = [kind.model_fields["kind"].default for kind in EVENTS]
    assert len(set(names)) == len(names) >= 15


def test_every_kind_of_every_file_is_read_and_can_be_imported_from_here() -> None:
    made = {kind for kind in Event.__subclasses__() if kind.__module__.startswith("convoy.job.events.")}
    assert made == set(EVENTS)
    assert all(hasattr(registry, kind.__name__) for kind in made)


def test_a_log_line_names_its_kind_its_time_and_its_writer() -> None:
    event = RankThroughput(t=12.5, generation=3, node=1, rank=7, step=2, tokens=100, seconds=0.5)
    assert json.loads(encode(event)) == {
        "kind": "rank_throughput",
        "t": 12.5,
        "generation": 3,
        "node": 1,
        "rank": 7,
        "step": 2,
        "tokens": 100,
        "seconds": 0.5,
        "waited_seconds": 0.0,
    }


def test_a_field_of_a_newer_version_is_passed_over() -> None:
    line = encode(WorkerExited(worker=3, signal="SIGKILL"))
    newer = json.dumps({**json.loads(line), "core_dump": "s3://somewhere"}).encode()
    assert same(decode(newer), decode(line))


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"{}", b'{"kind":"unheard_of"}', b'{"kind":"step"}', b"\xff"])
def test_what_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(ValidationError):
        decode(line)


def test_events_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        StepDone(step=1, loss=1, grad_norm=1, lr=1, tokens=1, seconds=1).step = 2  # type: ignore[misc]


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


def test_before_it_is_added_it_is_passed_over(store: Store) -> None:
    assert [type(event) for event in read_events(store)] == [GenerationStarted, StepDone]


def test_one_element_has_it_read_shown_and_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "EVENTS", (*registry.EVENTS, ClockStepped))
    *_, read = events = read_events(store)

    assert isinstance(read, ClockStepped)
    assert (read.seconds, read.generation, read.node, read.rank) == (float("inf"), 1, 0, None)
    assert json.loads(encode(read))["kind"] == "clock_stepped"
    text = "The clock of node 0 was set by inf s"
    assert event_lines(events)[-1] == f"{time.strftime('%H:%M:%S', time.localtime(read.t))}  {text}"
    assert text in [moment["text"] for moment in to_json(fold(events, None))["timeline"]]
