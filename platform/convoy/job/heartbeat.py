"""Whether a job is running now, so that a second run of it can refuse.

This is a courtesy to people. What keeps two gangs from harming each other is the generation: only the newest one's
commits count.
"""

import contextlib
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from convoy.config.base import UnixTime
from convoy.config.errors import ConfigError
from convoy.storage import ObjectMissing, Store, StoreUnavailable

LIVE = "LIVE.json"
BEAT_SECONDS = 5.0
EXPIRES_SECONDS = 30.0
"""A mark older than this is of a dead run. Hosts' clocks must agree to within it."""


class LiveMark(BaseModel):
    """Who runs the job, renewed every BEAT_SECONDS by node 0's task: by its agent, and before, while it prepares."""

    model_config = ConfigDict(frozen=True)

    run: str
    """Metaflow pathspec of the run."""
    host: str
    pid: int
    pid_started: str
    beat: UnixTime
    """Unix time of the last renewal."""
    preparing: bool = False
    """There is no agent yet, which would heed a wish."""
    marker: str = ""
    """Random: of two marks of one run, which one it is."""


@dataclass(frozen=True)
class Heartbeat:
    """The last sign of life of whoever runs a job."""

    seconds: float
    """Since then."""
    live: bool = True
    """The run continues, as far as can be seen from here."""
    by: str = ""
    """Which run, and where."""


HERE = Heartbeat(0.0)
"""Of a job that this process runs itself."""


def read_heartbeat(store: Store, now: float) -> Heartbeat | None:
    """The newest one; None: no run marks the job as running. now: Unix time. Raises StoreUnavailable."""
    mark = read_mark(store)
    if mark is None:
        return None
    by = f"run {mark.run} on {mark.host} (pid {mark.pid})"
    return Heartbeat(max(now - mark.beat, 0.0), is_live(mark, now), by)


def check_not_live(store: Store, job: str, run: str = "") -> None:
    """Raises ConfigError if another run than `run` is running the job."""
    mark = live_mark(store)
    if mark is not None and mark.run != run:
        raise ConfigError(f"job = {job}: run {mark.run} on {mark.host} (pid {mark.pid}) is running it now")


def live_mark(store: Store) -> LiveMark | None:
    """Of the run that is running the job; None: no run is. Raises StoreUnavailable."""
    mark = read_mark(store)
    return mark if mark is not None and is_live(mark, time.time()) else None


def read_mark(store: Store) -> LiveMark | None:
    """None: there is none that can be read. A damaged one, as a host that lost power may leave, marks nothing."""
    try:
        return LiveMark.model_validate_json(store.read(LIVE))
    except (ObjectMissing, ValidationError):
        return None


def is_live(mark: LiveMark, now: float) -> bool:
    """On the mark's own host its process decides, elsewhere the mark's age."""
    if mark.host == socket.gethostname():
        return _process_start(mark.pid) == mark.pid_started
    return now - mark.beat < EXPIRES_SECONDS


class LiveMarker:
    """Holds the job's mark while a `with` block runs. Raises ConfigError on entry if another run holds it."""

    def __init__(self, store: Store, job: str, run: str, *, preparing: bool = False) -> None:
        self._store = store
        self._job = job
        self._run = run
        self._preparing = preparing
        self._marker = secrets.token_hex(8)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="live mark", daemon=True)

    def __enter__(self) -> "LiveMarker":
        # Of two runs started at once both may have seen no mark: only one creates it.
        if not self._store.create(LIVE, self._mark()):
            check_not_live(self._store, self._job, self._run)
            self._store.write(LIVE, self._mark())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        mark = read_mark(self._store)
        if mark is not None and mark.marker == self._marker:
            self._store.delete(LIVE)

    def _renew(self) -> None:
        while not self._done.wait(BEAT_SECONDS):
            with contextlib.suppress(StoreUnavailable):  # else the next beat tries again; meanwhile the mark expires
                self._store.write(LIVE, self._mark())

    def _mark(self) -> bytes:
        mark = LiveMark(
            run=self._run,
            host=socket.gethostname(),
            pid=os.getpid(),
            pid_started=_process_start(os.getpid()),
            beat=time.time(),
            preparing=self._preparing,
            marker=self._marker,
        )
        return mark.model_dump_json().encode()


def _process_start(pid: int) -> str:
    """Start time of a process in clock ticks since boot, so that a reused pid is noticed; empty if none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    zombie = fields[0] == "Z"
    return "" if zombie else fields[19]
