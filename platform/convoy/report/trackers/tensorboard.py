"""TensorBoard: event files in a folder, which hold the run's last steps themselves."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from convoy.report.trackers.points import LastSteps, Point, Text
from convoy.report.trackers.tracker import Ending, TrackedRun, TrackerState, missing_package

_RESUMED = re.compile(r"convoy: generation (\d+) resumed from step (\d+)")

NOTE = "convoy/run"
"""Tag of the text that names the job, its run and its card."""


class TensorBoardTracker:
    """Writes into a folder, and continues what it finds there."""

    takes_back = True

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._writer: Any = None

    @property
    def place(self) -> str:
        """As `Tracker.place`."""
        return str(self._folder)

    def open(self, run: TrackedRun) -> TrackerState:
        """As `Tracker.open`: reads back what the folder's files hold."""
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise missing_package("tensorboard", error) from error
        self._folder.mkdir(parents=True, exist_ok=True)
        state = read_state(self._folder)
        self._writer = EventFileWriter(str(self._folder))
        self._add_text(NOTE, "\n\n".join(f"{name}: {value}" for name, value in run.tags.items()), 0, run.started)
        self._writer.flush()
        return state

    def send(self, points: Sequence[Point], texts: Sequence[Text]) -> None:
        """As `Tracker.send`: one record for the numbers of an event, since each one wakes the writer's thread."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for (step, t), row in groupby(points, key=lambda point: (point.step, point.t)):
            summary = Summary(value=[Summary.Value(tag=point.name, simple_value=point.value) for point in row])
            self._writer.add_event(Event(wall_time=t, step=step, summary=summary))
        for text in texts:
            self._add_text(text.name, text.text, text.step, text.t)
        self._writer.flush()

    def take_back(self, generation: int, step: int) -> None:
        """As `Tracker.take_back`: TensorBoard drops what precedes the start of a session and has its step or more."""
        import time

        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        message = f"convoy: generation {generation} resumed from step {step}"
        session = SessionLog(status=SessionLog.START, msg=message)
        self._writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=session))
        self._writer.flush()

    def close(self, ending: Ending, t: float) -> None:
        """As `Tracker.close`."""
        self._writer.close()

    def _add_text(self, tag: str, text: str, step: int, t: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode(errors="replace")])
        value = Summary.Value(tag=tag, metadata=plugin, tensor=tensor)
        self._writer.add_event(Event(wall_time=t, step=step, summary=Summary(value=[value])))


def read_state(folder: Path) -> TrackerState:
    """What the folder's event files show, with TensorBoard's own rules. An unfinished last record is ignored."""
    last_steps: LastSteps = {}
    resumptions: dict[int, int] = {}
    for event in _events(folder):
        if event.HasField("session_log") and (resumed := _RESUMED.match(event.session_log.msg)):
            generation, step = map(int, resumed.groups())
            resumptions[generation] = step
            last_steps = {name: min(last, step) for name, last in last_steps.items()}
        for value in event.summary.value:
            last_steps[value.tag] = max(event.step, last_steps.get(value.tag, -1))
    return TrackerState(last_steps=last_steps, resumptions=resumptions)


def _events(folder: Path) -> Iterator[Any]:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for file in sorted(folder.glob("events.out.tfevents.*")):
        yield from LegacyEventFileLoader(str(file)).Load()
