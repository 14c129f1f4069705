"""An agent's loop: what it sees becomes signs, which all agents share; node 0's judges them, and all do as it says.

Nothing here waits for a store or for another node: who is lost, or hangs, must be seen meanwhile.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable
from queue import Empty
from typing import Literal, TypeVar

from convoy.config.errors import ConfigError
from convoy.gang import rendezvous
from convoy.gang.async_call import Background
from convoy.gang.diagnosis.environment import Surroundings
from convoy.gang.diagnosis.failure_history import Past
from convoy.gang.diagnosis.first_cause import Seat
from convoy.gang.diagnosis.hang_detector import Patience
from convoy.gang.diagnosis.monitor import Watch
from convoy.gang.diagnosis.stragglers import SlowNodes
from convoy.gang.diagnosis.verdict import End, Finished, Preempted, Restart, Stopped, Wait, judge
from convoy.gang.network.messages import MESSAGES, Decided, Decision, Go, Seen, Where
from convoy.gang.network.peer_events import Said, Silent
from convoy.gang.network.peers import Peers
from convoy.gang.outcome import Outcome, outcome_of
from convoy.gang.rendezvous import FormedGeneration
from convoy.gang.say import say
from convoy.gang.task import Task
from convoy.gang.workers.worker_group import CLOSE_SECONDS, Site, Team
from convoy.job.events.log import EventWriter
from convoy.job.events.types import Event, PeerSuspected, SlowNode
from convoy.job.generations import CommitsLostError, GenerationLostError
from convoy.storage import StoreUnavailable
from convoy.storage.base import FLUSH_SECONDS

TURN_SECONDS = 0.05
"""At most so long after it came, what another agent says is heard. The end of a worker wakes the loop."""

LOOK_SECONDS = 0.1
"""Between two looks at the workers' states and marks."""

TELL_SECONDS = 0.25
"""Between two messages to node 0 on where the workers are."""

WORD_SECONDS = 1.0
"""A node that knows that the gang cannot go on has stopped its workers, and waits so long for node 0 to say why."""

OPEN_SECONDS = 30.0
"""For the event log of a generation to be opened."""

STARTING_SECONDS = 0.01
"""Between two looks whether a generation is formed and its log is open."""

T = TypeVar("T")


class Supervisor:
    """One agent's, from the first generation to the end of its part in the gang. `run` belongs to one thread."""

    def __init__(self, site: Site, peers: Peers, surroundings: Surroundings, formed: FormedGeneration) -> None:
        """formed: the first generation, for which all nodes have come."""
        node = site.node
        self._site, self._peers, self._surroundings = site, peers, surroundings
        self._seat = Seat(node.index, node.nodes, node.world_size)
        script = site.task.script
        self._watch = Watch(self._seat, _patience_for(site.task), math.inf if script is None else script.exit_seconds)
        self._slow = SlowNodes(node.nodes, node.world_size, site.task.config.parallel.pipeline)
        self._began = time.monotonic()
        self._cancelled = threading.Event()
        self._first = self.generation = formed.generation
        self._over = formed.generation.generation - 1
        """The newest generation whose workers were ended for the next one to start."""
        self._starting: Background[tuple[FormedGeneration, EventWriter]] | None = None
        self._team: Team | None = None
        self._ended_team: Team | None = None
        """Of the newest generation, when its workers are no more: its log is the newest one, and still open."""
        self._closing: list[Background[None]] = []
        self._past = Past(site.store, formed.generation.generation)
        self._told: Decision | None = None
        """By node 0, and not carried out yet."""
        self._word: tuple[Decision, float] | None = None
        """What this agent knows of itself, while it waits until then for node 0 to say it."""
        self._judge_at: float | None = None
        self._look_at = self._tell_at = 0.0
        self._start(formed)

    def run(self) -> Outcome:
        """Until the gang has ended, on this node as on all. Raises StoreUnavailable if it ended well and the log does
        not take it."""
        try:
            while not self._cancelled.is_set():
                self._see(time.monotonic())
                decision = self._decision(time.monotonic())
                if isinstance(decision, Restart):
                    self._restart()
                elif decision is not None:
                    return self._end(decision)
                self._tell(time.monotonic())
                self._site.warm.wait(self._pause(time.monotonic()))
            return Outcome(outcome="failed", message=f"node {self._seat.node} was told to end")
        except Exception as error:
            self._watch.cannot_go_on(f"{type(error).__name__}: {error}", lasting=False)
            self._tell(time.monotonic())
            raise
        finally:
            self._leave()

    def cancel(self) -> None:
        """Have `run` return soon, whatever the gang does. From any thread."""
        self._cancelled.set()

    @property
    def team(self) -> Team | None:
        """The workers that run now."""
        return self._team

    # What is seen.

    def _see(self, now: float) -> None:
        self._go_on_starting(now)
        self._listen()
        if self._team is not None:
            self._watch.saw(self._team.exits(now))
            if now >= self._look_at:
                self._look_at = now + LOOK_SECONDS
                self._look(self._team, now)
        if self._log is not None:
            self._watch.saw(self._surroundings.look(now, self._team, self._log))

    def _look(self, team: Team, now: float) -> None:
        self._watch.saw(team.stops(now))
        self._watch.placed(team.marks(), now)
        if self._seat.leads:
            self._watch.look_for_hangs(now)
            for slow in self._slow.look(self._watch.marks, now):
                self._append(SlowNode(slow_node=slow.node, share=slow.share, seconds=slow.seconds))
                say(f"convoy: {slow}")

    def _listen(self) -> None:
        while (event := _taken(self._peers.events.get_nowait)) is not None:
            if isinstance(event, Said):
                self._read(event)
                continue
            self._watch.met(event)
            if isinstance(event, Silent):
                self._append(PeerSuspected(peer=event.node, seconds=event.seconds, phi=event.phi))

    def _read(self, said: Said) -> None:
        message = MESSAGES.validate_python(said.body)
        newest = message.generation == self.generation.generation
        runs = newest and message.generation > self._over  # what is told late must not end the next generation
        match message:
            case Seen():
                self._watch.heard(s for s in message.heard(said.at) if runs or not s.of_a_worker)
            case Where() if runs:
                self._watch.placed(message.heard(said.at), said.at)
            case Decided() if newest and said.node == 0:
                self._told = message.decision(said.at)
                if isinstance(self._told, Restart):  # here, for the next generation may be told of in the same turn
                    self._over = message.generation
            case Go() if said.node == 0:
                self._start(FormedGeneration(message.formed))

    # What is told.

    def _tell(self, now: float) -> None:
        number = self.generation.generation
        untold = self._watch.untold()
        if untold:
            self._peers.send(None, Seen.of(number, untold, now).body())
        if self._team is not None and not self._seat.leads and now >= self._tell_at:
            self._tell_at = now + TELL_SECONDS
            self._peers.send(0, Where.of(number, self._team.marks(), now).body())

    def _append(self, event: Event) -> None:
        """In the newest generation's log; it is lost if that could not be opened."""
        if self._log is not None:
            self._log.append(event)

    @property
    def _log(self) -> EventWriter | None:
        team = self._team or self._ended_team
        return None if team is None else team.events

    # What is decided.

    def _decision(self, now: float) -> Decision | None:
        """What is to be done now; of what this agent found itself, the log has the cause."""
        if self._told is not None:
            told, self._told, self._word = self._told, None, None
            return told
        if self._word is not None:
            known, until = self._word
            return self._first_hand(known) if now >= until or self._watch.lost(0) else None
        verdict = judge(self._watch.signs, now, self._seat, self._past.failures())
        if isinstance(verdict, Wait):
            self._judge_at = verdict.until
            return None
        if self._seat.leads:
            self._peers.send(None, Decided.of(self.generation.generation, verdict, now).body())
            return self._first_hand(verdict)
        if self._watch.lost(0):
            return self._first_hand(verdict)
        self._halt("failed")
        self._judge_at = now + WORD_SECONDS
        self._word = verdict, self._judge_at
        return None

    def _first_hand(self, decision: Decision) -> Decision:
        if isinstance(decision, Restart | End | Preempted) and decision.cause is not None:
            self._append(decision.cause)
            self._past.add(decision.cause)
        return decision

    # What is done.

    def _start(self, formed: FormedGeneration) -> None:
        """The workers of a generation that exists, as soon as there is a log."""
        number = formed.generation.generation
        self.generation = formed.generation
        self._starting = Background("the event log", lambda: (formed, self._site.open_log(number)), OPEN_SECONDS)

    def _restart(self) -> None:
        self._halt("failed")
        if self._seat.leads:
            self._over = self.generation.generation
        self._watch.begin()
        self._slow.begin()
        self._surroundings.begin()
        if self._seat.leads:
            self._starting = Background("forming the next generation", self._form, rendezvous.FORM_SECONDS)

    def _form(self) -> tuple[FormedGeneration, EventWriter]:
        formed = rendezvous.form(self._site, self._first.control)
        return formed, self._site.open_log(formed.generation.generation)

    def _go_on_starting(self, now: float) -> None:
        if self._starting is None or not self._starting.over:
            return
        starting, self._starting = self._starting, None
        try:
            formed, events = starting.result()
            if formed.generation.generation <= self._over:  # a worker elsewhere failed before any was started here
                formed.let_go()
                log = events
                self._closing.append(Background("the event log", lambda: log.close(CLOSE_SECONDS), CLOSE_SECONDS))
                return
            self.generation = formed.generation
            if self._seat.leads and formed.generation != self._first:
                self._peers.send(None, Go.of(formed.generation).body())
            team = Team(self._site, formed.generation, events)
            if self._ended_team is not None:
                self._closing.append(self._ended_team.close())
            self._team, self._ended_team = team, None
            try:
                first = formed.generation == self._first  # in place nothing is won by it: it is the same machines
                team.start(formed.listener, self._site.task.spent_seconds + now - self._began, check_node=first)
            finally:
                formed.let_go()
        except (OSError, ConfigError, GenerationLostError, CommitsLostError) as error:
            self._watch.cannot_go_on(str(error), lasting=not isinstance(error, OSError))

    def _halt(self, outcome: Literal["finished", "stopped", "failed", "preempted"]) -> None:
        """No worker is left."""
        if self._team is None:
            return
        left = self._team.stop(outcome)
        self._team, self._ended_team = None, self._team
        if left:
            pids = ", ".join(map(str, sorted(left)))
            self._watch.cannot_go_on(f"processes {pids} hang in the kernel and cannot be killed", lasting=False)

    def _end(self, decision: End | Finished | Preempted | Stopped) -> Outcome:
        outcome = outcome_of(decision)
        self._halt(outcome.outcome)
        ended_well = outcome.outcome in ("finished", "stopped")
        try:
            if self._log is not None:
                self._log.flush(FLUSH_SECONDS if ended_well else CLOSE_SECONDS)
        except StoreUnavailable as error:  # never in place of the cause
            if ended_well:
                raise
            message = f"{outcome.message}\nand the event log is out of reach: {error}"
            return outcome.model_copy(update={"message": message})
        return outcome

    def _leave(self) -> None:
        self._halt("failed")
        if self._ended_team is not None:
            self._closing.append(self._ended_team.close())
        for closing in self._closing:
            with contextlib.suppress(StoreUnavailable):
                closing.result()

    def _pause(self, now: float) -> float:
        """Until something is due that nobody wakes this loop for."""
        if self._starting is not None:
            return STARTING_SECONDS
        due = [now + TURN_SECONDS]
        due += [self._look_at] if self._team is not None else []
        due += [self._judge_at] if self._judge_at is not None else []
        return max(0.0, min(due) - now)


def _patience_for(task: Task) -> Patience:
    if task.script is not None:
        return Patience(script_seconds=task.script.hang_seconds)
    return Patience(compiled=task.config.train.compile)


def _taken(take: Callable[[], T]) -> T | None:
    """What a queue has; None: nothing."""
    try:
        return take()
    except Empty:
        return None
