"""Writing and reading the log: one file per writer, merged by time."""

import contextlib
import re
import time

from pydantic import ValidationError

from convoy.job.events.registry import Event, EventsDropped, StoreRequests, decode, encode
from convoy.storage import Store
from convoy.storage.base import FLUSH_SECONDS
from convoy.storage.usage import request_counter

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
        self._log = job.open_log(f"events/{generation:06d}/{node:05d}/{writer}")
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
        for each in request_counter().take():
            self._append(StoreRequests(**each.model_dump()))

    def _append(self, event: Event) -> None:
        self._log.append(encode(event.model_copy(update={"t": time.time(), **self._stamp})))


class EventReader:
    """Reads a job's log piece by piece: `poll` gives what came since the last call."""

    def __init__(self, job: Store, generation: int | None = None, writer: str = "") -> None:
        """generation: reads the log of this one alone. writer: reads what writers of this name wrote, one on each node,
        such as `agent` or `rank00000`."""
        self._job = job
        # On S3 a log is a folder of pieces.
        self._wanted = re.compile(rf"events/\d+/\d+/{writer}[./]" if writer else "")
        self._prefix = "events/" if generation is None else f"events/{generation:06d}/"
        self._offsets: dict[str, int] = {}

    def poll(self) -> list[Event]:
        """New events of all writers, by time. After an outage (StoreUnavailable) the next call gives them all."""
        sizes = {name: size for name, size in self._job.sizes(self._prefix).items() if self._wanted.match(name)}
        read = {name: self._offsets.get(name, 0) for name in sizes}
        # All is read before anything counts as read: an outage half way must lose no event.
        grown = {name: self._job.read(name, read[name]) for name, size in sizes.items() if size > read[name]}
        events: list[Event] = []
        for name, data in grown.items():
            whole = data[: data.rfind(b"\n") + 1]  # a line being written is read next time
            self._offsets[name] = read[name] + len(whole)
            for line in whole.split(b"\n")[:-1]:
                # Of a newer version, or half a line that a full disk left behind.
                with contextlib.suppress(ValidationError):
                    events.append(decode(line))
        return sorted(events, key=lambda e: e.t)


def read_events(job: Store, generation: int | None = None, writer: str = "") -> list[Event]:
    """The whole log of a job, or the part of it that `EventReader` describes, by time. Raises StoreUnavailable."""
    return EventReader(job, generation, writer).poll()
