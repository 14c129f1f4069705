"""What the process of a user's script tells its node's agent and the event log, and hears from the agent."""

import contextlib
import threading
import time
from collections.abc import Mapping

from convoy.gang.assignment import Assignment
from convoy.gang.workers.board import Marker, OrderKind
from convoy.job.events.log import EventWriter
from convoy.job.events.types import ScriptEvent, ScriptResumed, ScriptStep, WorkerReady
from convoy.storage import StoreUnavailable, open_store

Value = bool | int | float | str | None

TELL_SECONDS = 1.0
"""Between two events on how far the script is. The agent sees each step."""

CLOSE_SECONDS = 10.0
"""At the end of the script, for the log to take what it has not yet."""


class ScriptLink:
    """One rank's."""

    def __init__(self, assignment: Assignment, began: float) -> None:
        """began: when the process of the rank did, by `time.perf_counter`."""
        self.checkpoints_uri = f"{assignment.job_uri}/script"
        self.ends_for_notice = False
        """The script was told to end, and is to do so."""
        self.marker = Marker(assignment.board_path, assignment.place.local_rank)
        self.marker.enter("script")
        self._assignment = assignment
        self._began = began
        self._log: EventWriter | None = None
        self._lock = threading.Lock()
        self.steps = 0
        """How often it told of its progress."""
        self._stepped_at = 0.0
        self._told: tuple[float, int] = (0.0, 0)
        """When `ScriptStep` was told last, and of which step."""

    def progress(self, step: int) -> None:
        """`step` steps are done. Costs microseconds."""
        now = time.monotonic()
        if not self.steps:
            self.marker.enter("step", step)
            self._first(step, now)
        else:
            self.marker.stepped(step, now - self._stepped_at, 0.0)
            self._tell(step, now)
        self.steps += 1
        self._stepped_at = now

    def ordered(self) -> OrderKind:
        """What the agent of this node wants of the gang."""
        self.marker.asks()
        return self.marker.order().kind

    def heard(self, kind: OrderKind) -> None:
        """The script knows of this order, as the whole gang has it, and does as it says."""
        if kind == "save":
            self.marker.answer(kind)
        elif kind != "none":
            self.ends_for_notice = True

    def event(self, name: str, values: Mapping[str, Value]) -> None:
        """Into the job's event log. Raises pydantic.ValidationError for values of other kinds."""
        self._events().append(ScriptEvent(name=name, values=dict(values)))

    def earned(self, code: int) -> None:
        """The script's last line has run: the agent may end this process, which has earned this exit code."""
        self.marker.earned(code)

    def close(self) -> None:
        """The last events are in the log, or it is out of reach."""
        with self._lock, contextlib.suppress(StoreUnavailable):
            log, self._log = self._log, None
            if log is not None:
                log.close(CLOSE_SECONDS)

    def _first(self, step: int, now: float) -> None:
        self._events().append(WorkerReady(phase="first_step", seconds=time.perf_counter() - self._began))
        if self._assignment.place.rank == 0:
            if step > 1 and self._assignment.generation > 1:
                self._events().append(ScriptResumed(step=step - 1))
            self._events().append(ScriptStep(step=step, seconds=0.0))
            self._told = now, step

    def _tell(self, step: int, now: float) -> None:
        at, told = self._told
        if self._assignment.place.rank == 0 and step > told and now - at >= TELL_SECONDS:
            self._events().append(ScriptStep(step=step, seconds=(now - at) / (step - told)))
            self._told = now, step

    def _events(self) -> EventWriter:
        with self._lock:
            if self._log is None:
                given = self._assignment
                store = open_store(given.job_uri, given.config.checkpoint.store)
                self._log = EventWriter(store, given.generation, given.place.node, given.place.rank, requests=True)
            return self._log
