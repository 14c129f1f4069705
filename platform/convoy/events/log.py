"""Writing and reading the log: one file per writer, merged by time."""

import json
import time
from typing import Any

from pydantic import ValidationError

from convoy.events.types import AnyEvent, Event, decode, encode
from convoy.storage import Store


class EventWriter:
    """Appends one writer's events to `events/<generation>/<node>/<writer>`."""

    def __init__(self, job: Store, generation: int, node: int, rank: int | None = None) -> None:
        self._stamp = {"generation": generation, "node": node, "rank": rank}
        writer = "agent" if rank is None else f"rank{rank:05d}"
        self._log = job.appender(f"events/{generation:06d}/{node:05d}/{writer}")

    def append(self, event: Event) -> None:
        """Stamp the event with the time and its writer, and append it."""
        self._log.append(encode(event.model_copy(update={"t": time.time(), **self._stamp})))

    def flush(self) -> None:
        self._log.flush()

    def close(self) -> None:
        self._log.close()


class EventReader:
    """Reads a job's log piece by piece: `poll` gives what came since the last call."""

    def __init__(self, job: Store) -> None:
        self._job = job
        self._offsets: dict[str, int] = {}
        self.unknown = 0
        """Lines of kinds this version does not know."""

    def poll(self) -> list[AnyEvent]:
        """New events of all writers, by time."""
        events: list[AnyEvent] = []
        for name, size in self._job.sizes("events/").items():
            seen = self._offsets.get(name, 0)
            if size > seen:
                data = self._job.read(name, seen)
                whole = data[: data.rfind(b"\n") + 1]  # a line being written is read next time
                self._offsets[name] = seen + len(whole)
                events.extend(self._decode_lines(whole))
        return sorted(events, key=lambda e: e.t)

    def _decode_lines(self, data: bytes) -> list[AnyEvent]:
        events = []
        for line in data.splitlines():
            try:
                events.append(decode(line))
            except ValidationError:
                if not _is_json_object(line):
                    raise
                self.unknown += 1
        return events


def read_events(job: Store) -> list[AnyEvent]:
    """The whole log of a job, by time."""
    return EventReader(job).poll()


def _is_json_object(line: bytes) -> bool:
    try:
        value: Any = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict)
