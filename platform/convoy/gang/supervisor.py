"""An agent's loop: its evidence is shared with all agents; node 0's agent judges all evidence, and all follow it.

Nothing here waits for a store or for another node: lost nodes and hangs must be noticed meanwhile.
"""

import contextlib
import math
import threading
import time
from typing import Literal

from convoy.config.errors import ConfigError
from convoy.gang import rendezvous
from convoy.gang.async_call import BackgroundCall, say
from convoy.gang.diagnosis.hang_detector import HangDetector
from convoy.gang.diagnosis.monitor import GangMonitor
from convoy.gang.diagnosis.node_monitor import NodeMonitor, take_queued
from convoy.gang.diagnosis.stragglers import StragglerDetector
from convoy.gang.diagnosis.verdict import FailureHistory, judge, outcome_of
from convoy.gang.messages import Decision, EndAttempt, Finished, GangOutcome, Message, Preempted, Restart, Stopped, Wait
from convoy.gang.network.formation import PayloadReceived, PeerSilent
from convoy.gang.network.peers import Peers
from convoy.gang.rendezvous import FormedGeneration
from convoy.gang.task import Task
from convoy.gang.workers.worker_group import CLOSE_SECONDS, NodeContext, WorkerGroup
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import Event, PeerSuspected, SlowNode
from convoy.job.generations import CommitsLostError, GenerationLostError
from convoy.storage import StoreUnavailable
from convoy.storage.base import FLUSH_SECONDS

TURN_SECONDS = 0.05
"""Most between the arrival of another agent's message and its handling. The end of a worker wakes the loop."""

LOOK_SECONDS = 0.1
"""Between two looks at the workers' states and marks."""

SEND_SECONDS = 0.25
"""Between two messages to node 0 with the workers' marks."""

DECISION_SECONDS = 1.0
"""A node that knows that the gang cannot continue has stopped its workers, and waits this long for node 0's reason."""

OPEN_SECONDS = 30.0
"""For the event log of a generation to be opened."""

STARTING_SECONDS = 0.01
"""Between two checks whether a generation is formed and its log is open."""


class Supervisor:
    """One agent's, from the first generation to the end of its part in the gang. `run` belongs to one thread."""

    def __init__(self, context: NodeContext, peers: Peers, node_monitor: NodeMonitor, formed: FormedGeneration) -> None:
        """formed: the first generation, which all nodes have joined."""
        node, script = context.node, context.task.script
        self._context, self._node, self._peers, self._node_monitor = context, node, peers, node_monitor
        exit_seconds = math.inf if script is None else script.exit_seconds
        self._monitor = GangMonitor(node, _hang_detector_for(context.task), exit_seconds)
        self._stragglers = StragglerDetector(node.nodes, node.world_size, context.task.config.parallel.pipeline)
        self._began = time.monotonic()
        self._cancelled = threading.Event()
        self._first = self.generation = formed.generation
        self._over = formed.generation.generation - 1
        """The newest generation whose workers were ended so that the next one can start."""
        self._starting: BackgroundCall[tuple[FormedGeneration, EventWriter]] | None = None
        self.workers: WorkerGroup | None = None
        """The workers that run now."""
        self._ended_workers: WorkerGroup | None = None
        """Of the newest generation, once they have ended: its log is the newest one, and still open."""
        self._closing: list[BackgroundCall[None]] = []
        self._history = FailureHistory(context.store, formed.generation.generation)
        self._received: Decision | None = None
        """From node 0, and not carried out yet."""
        self._own_decision: tuple[Decision, float] | None = None
        """What this agent knows itself, while it waits until that time for node 0's decision."""
        self._judge_at: float | None = None
        self._look_at = self._send_at = 0.0
        self._begin_starting(formed)

    def run(self) -> GangOutcome:
        """Run until the gang has ended, on this node as on all. Raises StoreUnavailable if it ended well and the log
        cannot be written."""
        try:
            while not self._cancelled.is_set():
                self._collect_evidence(time.monotonic())
                decision = self._decide(time.monotonic())
                if isinstance(decision, Restart):
                    self._restart()
                elif decision is not None:
                    return self._end(decision)
                self._send_evidence_and_marks(time.monotonic())
                self._context.prefork.wait_for_report(self._poll_timeout(time.monotonic()))
            return GangOutcome(outcome="failed", message=f"node {self._node.index} was ordered to end")
        except Exception as error:
            self._monitor.add_own_failure(f"{type(error).__name__}: {error}", lasting=False)
            self._send_evidence_and_marks(time.monotonic())
            raise
        finally:
            self._stop_and_close_logs()

    def cancel(self) -> None:
        """Have `run` return soon, whatever the gang does. From any thread."""
        self._cancelled.set()

    # Evidence.

    def _collect_evidence(self, now: float) -> None:
        self._continue_starting(now)
        for event in take_queued(self._peers.events.get_nowait):
            if isinstance(event, PayloadReceived):
                self._receive(event)
                continue
            self._monitor.add_peer_event(event)
            if isinstance(event, PeerSilent):
                self._log_event(PeerSuspected(peer=event.node, seconds=event.seconds, phi=event.phi))
        if self.workers is not None:
            self._monitor.add_own(self.workers.new_exits(now))
            if now >= self._look_at:
                self._look_at = now + LOOK_SECONDS
                self._check_workers(self.workers, now)
        if self._event_log is not None:
            self._monitor.add_own(self._node_monitor.collect_evidence(now, self.workers, self._event_log))

    def _check_workers(self, workers: WorkerGroup, now: float) -> None:
        self._monitor.add_own(workers.newly_stopped(now))
        self._monitor.update_marks(workers.marks(), now)
        if self._node.leads:
            self._monitor.look_for_hangs(now)
            for change in self._stragglers.update(self._monitor.marks, now):
                self._log_event(SlowNode(slow_node=change.node, share=change.share, seconds=change.seconds))
                say(f"convoy: {change}")

    def _receive(self, event: PayloadReceived) -> None:
        message = Message.model_validate(event.body)
        shift = event.at - message.sent
        is_newest = message.generation == self.generation.generation
        runs = is_newest and message.generation > self._over  # a late message must not end the next generation
        received = [item.on_own_clock(event.at, shift) for item in message.evidence]
        self._monitor.add_received(item for item in received if runs or not item.lapses_with_generation)
        if runs:
            self._monitor.update_marks({rank: mark.shifted(shift) for rank, mark in message.marks.items()}, event.at)
        decision = message.decision
        if decision is not None and is_newest and event.node == 0:
            self._received = decision.on_own_clock(event.at, shift) if isinstance(decision, Preempted) else decision
            if isinstance(decision, Restart):  # here, since the next generation may start in the same turn
                self._over = message.generation
        if message.formed is not None and event.node == 0:
            self._begin_starting(FormedGeneration(message.formed))

    def _send_evidence_and_marks(self, now: float) -> None:
        number = self.generation.generation
        unsent = self._monitor.take_unsent()
        if unsent:
            self._peers.send(None, Message(generation=number, sent=now, evidence=unsent).body())
        if self.workers is not None and not self._node.leads and now >= self._send_at:
            self._send_at = now + SEND_SECONDS
            self._peers.send(0, Message(generation=number, sent=now, marks=self.workers.marks()).body())

    def _log_event(self, event: Event) -> None:
        """To the newest generation's log; the event is lost if that could not be opened."""
        if self._event_log is not None:
            self._event_log.append(event)

    @property
    def _event_log(self) -> EventWriter | None:
        workers = self.workers or self._ended_workers
        return None if workers is None else workers.events

    # Decisions.

    def _decide(self, now: float) -> Decision | None:
        """What is to be done now. The cause of a decision of this agent's own is logged."""
        if self._received is not None:
            received, self._received, self._own_decision = self._received, None, None
            return received
        if self._own_decision is not None:
            decision, until = self._own_decision
            return self._log_cause(decision) if now >= until or self._monitor.has_lost(0) else None
        verdict = judge(self._monitor.evidence, now, self._node, self._history.failures())
        if isinstance(verdict, Wait):
            self._judge_at = verdict.until
            return None
        if self._node.leads:
            number = self.generation.generation
            self._peers.send(None, Message(generation=number, sent=now, decision=verdict).body())
            return self._log_cause(verdict)
        if self._monitor.has_lost(0):
            return self._log_cause(verdict)
        self._stop_workers("failed")
        self._judge_at = now + DECISION_SECONDS
        self._own_decision = verdict, self._judge_at
        return None

    def _log_cause(self, decision: Decision) -> Decision:
        if isinstance(decision, Restart | EndAttempt | Preempted) and decision.cause is not None:
            self._log_event(decision.cause)
            self._history.add(decision.cause)
        return decision

    # What follows from them.

    def _begin_starting(self, formed: FormedGeneration) -> None:
        """Start the workers of a generation that exists, as soon as its log is open."""
        number, open_log = formed.generation.generation, self._context.open_event_log
        self.generation = formed.generation
        self._starting = BackgroundCall("the event log", lambda: (formed, open_log(number)), OPEN_SECONDS)

    def _restart(self) -> None:
        self._stop_workers("failed")
        if self._node.leads:
            self._over = self.generation.generation
        self._monitor.begin_generation()
        self._stragglers.begin_generation()
        self._node_monitor.begin_generation()
        if self._node.leads:
            self._starting = BackgroundCall("forming the next generation", self._form_next, rendezvous.FORM_SECONDS)

    def _form_next(self) -> tuple[FormedGeneration, EventWriter]:
        formed = rendezvous.form_next_generation(self._context, self._first.control)
        return formed, self._context.open_event_log(formed.generation.generation)

    def _continue_starting(self, now: float) -> None:
        if self._starting is None or not self._starting.is_over:
            return
        starting, self._starting = self._starting, None
        try:
            formed, events = starting.result()
            if formed.generation.generation <= self._over:  # a worker elsewhere failed before any was started here
                formed.close_listener()
                self._closing.append(
                    BackgroundCall("the event log", lambda: events.close(CLOSE_SECONDS), CLOSE_SECONDS)
                )
                return
            self.generation = formed.generation
            is_first = formed.generation == self._first
            if self._node.leads and not is_first:
                number = formed.generation.generation
                self._peers.send(None, Message(generation=number, sent=now, formed=formed.generation).body())
            workers = WorkerGroup(self._context, formed.generation, events)
            if self._ended_workers is not None:
                self._closing.append(self._ended_workers.close_event_log())
            self.workers, self._ended_workers = workers, None
            spent_seconds = self._context.task.spent_seconds + now - self._began
            try:
                # A generation in place gains nothing from a check: its machines are the same.
                workers.start(formed.listener, spent_seconds, check_node=is_first)
            finally:
                formed.close_listener()
        except (OSError, ConfigError, GenerationLostError, CommitsLostError) as error:
            self._monitor.add_own_failure(str(error), lasting=not isinstance(error, OSError))

    def _stop_workers(self, outcome: Literal["finished", "stopped", "failed", "preempted"]) -> None:
        if self.workers is None:
            return
        left = self.workers.stop(outcome)
        self.workers, self._ended_workers = None, self.workers
        if left:
            pids = ", ".join(map(str, sorted(left)))
            self._monitor.add_own_failure(f"processes {pids} hang in the kernel and cannot be killed", lasting=False)

    def _end(self, decision: EndAttempt | Finished | Preempted | Stopped) -> GangOutcome:
        outcome = outcome_of(decision)
        if self._event_log is not None:
            self._node_monitor.log_last_samples(self._event_log)
        self._stop_workers(outcome.outcome)
        ended_well = outcome.outcome in ("finished", "stopped")
        try:
            if self._event_log is not None:
                self._event_log.flush(FLUSH_SECONDS if ended_well else CLOSE_SECONDS)
        except StoreUnavailable as error:  # never in place of the cause
            if ended_well:
                raise
            message = f"{outcome.message}\nand the event log is out of reach: {error}"
            return outcome.model_copy(update={"message": message})
        return outcome

    def _stop_and_close_logs(self) -> None:
        self._stop_workers("failed")
        if self._ended_workers is not None:
            self._closing.append(self._ended_workers.close_event_log())
        for closing in self._closing:
            with contextlib.suppress(StoreUnavailable):
                closing.result()

    def _poll_timeout(self, now: float) -> float:
        """Until something is due for which nothing wakes this loop."""
        if self._starting is not None:
            return STARTING_SECONDS
        due = [now + TURN_SECONDS]
        due += [self._look_at] if self.workers is not None else []
        due += [self._judge_at] if self._judge_at is not None else []
        return max(0.0, min(due) - now)


def _hang_detector_for(task: Task) -> HangDetector:
    if task.script is not None:
        return HangDetector(script_seconds=task.script.hang_seconds)
    return HangDetector(compiled=task.config.train.compile)
