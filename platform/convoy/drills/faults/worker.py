"""Faults of workers, at random times too, and none at all."""

import os
import signal
import statistics
import time
from collections.abc import Sequence
from typing import ClassVar

from convoy.drills.fault import Expectation, Fault, GangProgress
from convoy.drills.gang import DrillError, DrillGang, Order
from convoy.drills.observe import Observation
from convoy.job.events.registry import Event, FailureKind, GenerationStarted, StepDone

SLOW_SECONDS = 120.0
"""For a node that has become slow to be reported: several times what that takes."""


class NoFault(Fault):
    """To see that nothing is seen where nothing is."""

    name = "none"
    summary = "nothing happens: no false alarm, with evaluation and saves (with --seconds compiled, too)"
    lasting = True

    def overrides(self) -> Sequence[str]:
        compiled = ["train.compile=true"] if self.seconds is not None else []
        return ["evaluation.every_steps=15", *compiled]

    def should_inject(self, progress: GangProgress) -> bool:
        return False

    def inject(self, gang: DrillGang) -> float:
        raise AssertionError("there is nothing to do")

    def expected(self) -> Expectation:
        return Expectation(way="undisturbed", same_state=self.seconds is None)


class WorkerFault(Fault):
    """Of one worker, any of them, which is replaced in place."""

    causes: ClassVar[frozenset[FailureKind]]

    def __post_init__(self) -> None:
        self.rank = self.random.randrange(self.size.ranks)

    def expected(self) -> Expectation:
        return Expectation(way="in place", causes=self.causes, node=self.size.node_of(self.rank), rank=self.rank)


class WorkerKill(WorkerFault):
    name = "worker-kill"
    summary = "SIGKILL to a worker"
    causes = frozenset({"exited"})
    target_detected = 0.3
    target_recovered = 2.5

    def inject(self, gang: DrillGang) -> float:
        return send_signal(gang.await_worker_pid(self.rank), signal.SIGKILL)


class WorkerStop(WorkerFault):
    name = "worker-stop"
    summary = "SIGSTOP to a worker, which never comes back"
    causes = frozenset({"stopped"})
    target_detected = 1.0
    target_recovered = 4.0

    def inject(self, gang: DrillGang) -> float:
        return send_signal(gang.await_worker_pid(self.rank), signal.SIGSTOP)


class SelfInflictedFault(WorkerFault):
    """What a worker does in its own process."""

    hooks = True
    order: ClassVar[Order]

    def inject(self, gang: DrillGang) -> float:
        return gang.give_order(self.rank, self.order)


class WorkerHang(SelfInflictedFault):
    name = "worker-hang"
    summary = "a worker hangs in C, and holds Python's lock"
    causes = frozenset({"hung"})
    order = "hang"
    target_detected = 3.0
    target_recovered = 7.0

    def detection_target_seconds(self, trial: Observation) -> float:
        return max(self.target_detected, 5 * p99_step_seconds(trial))

    def recovery_target_seconds(self, trial: Observation) -> float:
        return self.detection_target_seconds(trial) + self.target_recovered - self.target_detected


class WorkerError(SelfInflictedFault):
    name = "worker-error"
    summary = "an exception in a worker's training"
    causes = frozenset({"exited"})
    order = "fail"

    def own_problems(self, trial: Observation) -> list[str]:
        return _cause_text_problems(trial, "DrilledError")


class WorkerExit0(SelfInflictedFault):
    name = "worker-exit0"
    summary = "a worker ends with success while the others continue"
    causes = frozenset({"exited_early"})
    order = "exit"


class OutOfMemory(SelfInflictedFault):
    name = "oom"
    summary = "a worker takes memory until the kernel gives it no more"
    causes = frozenset({"exited"})
    order = "allocate"

    def own_problems(self, trial: Observation) -> list[str]:
        return _cause_text_problems(trial, "MemoryError")


class NotANumber(SelfInflictedFault):
    """A checkpoint is never made of it: the attempt ends when enough steps were not finite, and the next one goes on
    from before them."""

    name = "nan"
    summary = "weights of a worker become NaN, as by a bad device"
    causes = frozenset({"exited"})
    order = "poison"

    def expected(self) -> Expectation:
        return Expectation(way="next attempt", causes=self.causes)  # all ranks find it in the same step

    def own_problems(self, trial: Observation) -> list[str]:
        skipped = [e for e in trial.events if isinstance(e, StepDone) and e.skipped]
        wrong = [] if skipped else ["no step was skipped"]
        if trial.commit is not None and trial.commit.progress.skipped:
            wrong.append("the final state was computed with skipped steps")
        return wrong + _cause_text_problems(trial, "not finite")


class NodeSlowdown(SelfInflictedFault):
    name = "slow-node"
    summary = "every step of one worker takes several times the computing that it took"
    causes = frozenset()
    order = "crawl"
    endless = True  # a node is slow when it is so for several times 5 s, however many steps that takes

    def inject(self, gang: DrillGang) -> float:
        began = super().inject(gang)
        gang.wait_for_event("word of a slow node", self.is_detection, SLOW_SECONDS)
        return began

    def expected(self) -> Expectation:
        return Expectation(way="undisturbed")

    def is_detection(self, event: Event) -> bool:
        return event.kind == "slow_node" and getattr(event, "share", 0.0) > 0

    def own_problems(self, trial: Observation) -> list[str]:
        reports = [e for e in trial.events if self.is_detection(e)]
        if not reports:
            return ["no node was reported as slow"]
        named = {getattr(e, "slow_node", None) for e in reports}
        ours = self.size.node_of(self.rank)
        return [] if named == {ours} else [f"nodes {sorted(map(str, named))} were reported as slow, not node {ours}"]


class DoubleFault(WorkerFault):
    """The second one comes while the gang forms anew for the first."""

    name = "double-fault"
    summary = "SIGKILL to a worker, and to another one as soon as the gang starts again"
    causes = frozenset({"exited"})

    def inject(self, gang: DrillGang) -> float:
        before = gang.progress().generation
        began = send_signal(gang.await_worker_pid(self.rank), signal.SIGKILL)
        gang.wait_for_event("the next generation", lambda e: isinstance(e, GenerationStarted) and e.generation > before)
        others = [rank for rank in range(self.size.ranks) if rank != self.rank] or [self.rank]
        send_signal(gang.await_worker_pid(self.random.choice(others)), signal.SIGKILL)
        return began

    def expected(self) -> Expectation:
        return Expectation(
            way="in place",
            causes=self.causes,
            node=self.size.node_of(self.rank),
            rank=self.rank,
            generations=3,
        )


MEAN_SECONDS = 12.0
"""Between two faults, on average; a gang that is just starting has its share of them."""

DRAWN: Sequence[tuple[type[WorkerFault] | None, int]] = (
    (WorkerKill, 6),
    (WorkerStop, 3),
    (WorkerHang, 2),
    (WorkerError, 2),
    (WorkerExit0, 2),
    (None, 2),
)
"""How often each is drawn; None: a whole node is killed, and the next attempt continues."""


class RandomFaults(Fault):
    """Poisson: a fault is as likely in any moment as in any other, recoveries included, once all nodes of an attempt
    are there. A node that goes before is awaited: node 0 cannot distinguish it from one that has no machine yet."""

    name = "random"
    summary = "kills, stops, hangs and errors of workers and of nodes, at random times; then a clean end"
    hooks = True
    repeated = True
    lasting = True
    default_seconds = 60.0

    def __post_init__(self) -> None:
        self._next: float | None = None

    def overrides(self) -> Sequence[str]:
        return ["checkpoint.every_steps=5"]

    def should_inject(self, progress: GangProgress) -> bool:
        now = time.monotonic()
        if self._next is None and any(isinstance(e, StepDone) for e in progress.events):
            self._next = now + self._draw_interval()
        return self._next is not None and now >= self._next and self._all_nodes_started(progress)

    def _all_nodes_started(self, progress: GangProgress) -> bool:
        """All nodes, in the newest attempt."""
        started = [e for e in progress.events if isinstance(e, GenerationStarted)]
        formed = min((e.generation for e in started if e.node == 0 and e.attempt == progress.attempt), default=None)
        there = {e.node for e in started if formed is not None and e.generation >= formed}
        return len(there) == self.size.nodes

    def inject(self, gang: DrillGang) -> float:
        kinds, weights = zip(*DRAWN, strict=True)
        kind = self.random.choices(kinds, weights)[0]
        rank = self.random.randrange(self.size.ranks)
        self._next = time.monotonic() + self._draw_interval()
        pid = gang.current_worker_pid(rank)
        if kind is None or pid is None:  # between two generations there is no worker, but always a node
            return gang.kill_node(self.size.node_of(rank))
        fault: WorkerFault = kind(self.size, self.random, self.folder)
        fault.rank = rank
        try:
            return fault.inject(gang)
        except (ProcessLookupError, DrillError):  # it ended meanwhile, by an earlier fault
            return time.time()

    def _draw_interval(self) -> float:
        return self.random.expovariate(1 / MEAN_SECONDS)

    def expected(self) -> Expectation:
        return Expectation(way="next attempt")


def send_signal(pid: int, number: signal.Signals) -> float:
    """Send it; the wall time."""
    now = time.time()
    os.kill(pid, number)
    return now


def p99_step_seconds(trial: Observation) -> float:
    """Seconds of the slowest step but one in a hundred before the fault, without each generation's first."""
    before = trial.injected[0] if trial.injected else float("inf")
    times = [e.seconds for e in trial.events if isinstance(e, StepDone) and e.t < before][1:]
    return statistics.quantiles(times, n=100, method="inclusive")[98] if len(times) > 1 else 0.0


def _cause_text_problems(trial: Observation, text: str) -> list[str]:
    """Whether the first cause says so."""
    texts = [e.reason + e.log_tail for e in trial.failures[:1]]
    return [] if texts and text in texts[0] else [f"the first cause does not mention {text}: {texts}"]
