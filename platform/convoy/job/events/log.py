"""Writing and reading the log: one file per writer, merged by time."""

import time
from typing import Any

from pydantic import ValidationError

from convoy.config.json_text import parse_json
from convoy.job.events.types import Event, EventsDropped, StoreRequests, decode, encode
from convoy.storage import Store
from convoy.storage.base import FLUSH_SECONDS
from convoy.storage.usage import tally

REQUESTS_SECONDS = 60.0
"""Between two counts of requests to buckets in a log."""


class EventWriter:
    """Appends one writer's events to `events/<generation>/<node>/<writer>`.

    A thread writes them: training does not wait for the log. A process that is killed may lose its last moments.
    """

    def __init__(self, job: Store, generation: int, node: int, rank: int | None = None, requests: bool = False) -> None:
        """requests: log what this process asks of buckets, too; one writer of a process at a time."""
        self._stamp = {"generation": generation, "node": node, "rank": rank}
        writer = "agent" if rank is None else f"rank{rank:05d}"
        self._log = job.appender(f"events/{generation:06d}/{node:05d}/{writer}")
        self._requests = requests
        self._requests_written = time.monotonic()

    def append(self, event: Event) -> None:
        """Stamp the event with the time and its writer, and append it. Never waits for the storage, nor fails by it."""
        self._write_dropped()
        self._append(event)
        if self._requests and time.monotonic() - self._requests_written >= REQUESTS_SECONDS:
            self._write_requests()

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> None:
        """Have all that was appended in the storage. Raises StoreUnavailable."""
        self._log.flush(timeout_seconds)

    def close(self, timeout_seconds: float = FLUSH_SECONDS) -> None:
        """Flush, and end. Raises StoreUnavailable."""
        self._log.flush(timeout_seconds)
        self._write_dropped()
        if self._requests:
            self._write_requests()
        self._log.close(timeout_seconds)

    def _write_dropped(self) -> None:
        dropped = self._log.take_dropped()
        if dropped:
            self._append(EventsDropped(events=dropped))

    def _write_requests(self) -> None:
        self._requests_written = time.monotonic()
        for each in tally().take():
            self._append(StoreRequests(**each.model_dump()))

    def _append(self, event: Event) -> None:
        self._log.append(encode(event.model_copy(update={"t": time.time(), **self._stamp})))


class EventReader:
    """Reads a job's log piece by piece: `poll` gives what came since the last call."""

    def __init__(self, job: Store, generation: int | None = None) -> None:
        """generation: reads the log of this one alone."""
        self._job = job
        self._prefix = "events/" if generation is None else f"events/{generation:06d}/"
        self._offsets: dict[str, int] = {}
        self.unknown = 0
        """Events of a newer version of Convoy."""
        self.damaged = 0
        """Lines that are no event at all, such as half a line that a full disk left behind."""

    def poll(self) -> list[Event]:
        """New events of all writers, by time. After an outage (StoreUnavailable) the next call gives them all."""
        sizes = self._job.sizes(self._prefix)
        read = {name: self._offsets.get(name, 0) for name in sizes}
        # All is read before anything counts as read: an outage half way must lose no event.
        grown = {name: self._job.read(name, read[name]) for name, size in sizes.items() if size > read[name]}
        events: list[Event] = []
        for name, data in grown.items():
            whole = data[: data.rfind(b"\n") + 1]  # a line being written is read next time
            self._offsets[name] = read[name] + len(whole)
            events.extend(self._decode_lines(whole))
        return sorted(events, key=lambda e: e.t)

    def _decode_lines(self, data: bytes) -> list[Event]:
        events = []
        for line in data.split(b"\n")[:-1]:
            try:
                events.append(decode(line))
            except ValidationError:
                if _is_json_object(line):
                    self.unknown += 1
                else:
                    self.damaged += 1
        return events


def read_events(job: Store, generation: int | None = None) -> list[Event]:
    """The whole log of a job, or that of one generation, by time."""
    return EventReader(job, generation).poll()


def _is_json_object(line: bytes) -> bool:
    try:
        value: Any = parse_json(line)
    except ValueError:
        return False
    return isinstance(value, dict)
