"""How the process of a user's script reports to its node's agent and the event log, and receives the agent's orders."""

import contextlib
import threading
import time
from collections.abc import Mapping

from convoy.gang.task import Assignment
from convoy.gang.workers.board import Marker, OrderKind
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import ScriptEvent, ScriptResumed, ScriptStep, WorkerReady
from convoy.network.nccl.proof import OwnProof
from convoy.storage import StoreUnavailable, open_store

Value = bool | int | float | str | None

EVENT_SECONDS = 1.0
"""Between two progress events. The agent sees each step."""

NETWORK_LOOKS = frozenset(2**power for power in range(1, 11))
"""Calls of `progress` after which NCCL's log is read, until it shows what carries the traffic: a script may use NCCL
between hosts for the first time after some steps only."""

CLOSE_SECONDS = 10.0
"""At the end of the script, for the log to take the rest of its events."""


class ScriptChannel:
    """One rank's."""

    def __init__(self, assignment: Assignment, began: float, network: OwnProof | None = None) -> None:
        """began: when the rank's process began, by `time.perf_counter`. network: None where nothing is to be proven,
        as on CPUs."""
        self.checkpoints_uri = f"{assignment.job_uri}/script"
        self.store_config = assignment.config.checkpoint.store
        self.ends_for_notice = False
        """The script was ordered to end, and is to do so."""
        self.marker = Marker(assignment.board_path, assignment.place.local_rank)
        self.marker.enter("script")
        self._assignment = assignment
        self._began = began
        self._network = network
        self._log: EventWriter | None = None
        self._lock = threading.Lock()
        self.steps = 0
        """How often it reported progress."""
        self._step = 0
        self._stepped_at = 0.0
        self._logged: tuple[float, int] = (0.0, 0)
        """Time and step of the last `ScriptStep`."""

    def report_progress(self, step: int) -> None:
        """`step` steps are done. Costs microseconds. Raises NetworkRequirementError."""
        now = time.monotonic()
        if not self.steps:
            self.marker.enter("step", step)
            self._log_first_step(step, now)
        else:
            self.marker.step_done(step, now - self._stepped_at, 0.0)
            self._log_step(step, now)
        self.steps += 1
        self._step, self._stepped_at = step, now
        if self._network is not None and self.steps in NETWORK_LOOKS and not self._network.is_final:
            self._prove_network(self._network)

    def poll_order(self) -> OrderKind:
        """The order of this node's agent to the gang."""
        self.marker.set_polls_orders()
        return self.marker.current_order().kind

    def set_agreed_order(self, kind: OrderKind) -> None:
        """The whole gang agreed on this order, and the script will carry it out."""
        if kind == "save":
            self.marker.acknowledge(kind)
        elif kind != "none":
            self.ends_for_notice = True

    def log_event(self, name: str, values: Mapping[str, Value]) -> None:
        """Append to the job's event log. Raises pydantic.ValidationError for values of other kinds."""
        self._event_log().append(ScriptEvent(name=name, values=dict(values)))

    def close(self) -> None:
        """Log the last step, and flush what the log lacks, unless it is out of reach."""
        with contextlib.suppress(StoreUnavailable):
            self._log_step(self._step, self._stepped_at, last=True)
        with self._lock, contextlib.suppress(StoreUnavailable):
            log, self._log = self._log, None
            if log is not None:
                log.close(CLOSE_SECONDS)

    def _log_first_step(self, step: int, now: float) -> None:
        self._event_log().append(WorkerReady(phase="first_step", seconds=time.perf_counter() - self._began))
        if self._assignment.place.rank == 0:
            if step > 1 and self._assignment.generation > 1:
                self._event_log().append(ScriptResumed(step=step - 1))
            self._event_log().append(ScriptStep(step=step, seconds=0.0))
            self._logged = now, step

    def _log_step(self, step: int, now: float, *, last: bool = False) -> None:
        at, logged = self._logged
        if self._assignment.place.rank == 0 and step > logged and (last or now - at >= EVENT_SECONDS):
            self._event_log().append(ScriptStep(step=step, seconds=(now - at) / (step - logged)))
            self._logged = now, step

    def _prove_network(self, network: OwnProof) -> None:
        proof = network.look()
        if proof is not None:
            self._event_log().append(proof)
            network.refuse_other_network()

    def _event_log(self) -> EventWriter:
        with self._lock:
            if self._log is None:
                own = self._assignment
                store = open_store(own.job_uri, own.config.checkpoint.store)
                self._log = EventWriter(store, own.generation, own.place.node, own.place.rank, requests=True)
            return self._log
