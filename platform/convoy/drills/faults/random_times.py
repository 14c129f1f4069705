"""Faults at random times, one after the other, for as long as asked."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from convoy.drills.fault import Expectation, Fault, GangProgress
from convoy.drills.faults.worker import WorkerError, WorkerExit0, WorkerFault, WorkerHang, WorkerKill, WorkerStop
from convoy.job.events.types import GenerationStarted, StepDone

if TYPE_CHECKING:
    from convoy.drills.gang import DrillGang

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
"""How often each is drawn; None: a whole node is killed, and the next attempt goes on."""


class RandomFaults(Fault):
    """Poisson: a fault is as likely in any moment as in any other, recoveries included, once all nodes of an attempt
    are there. A node that goes before is awaited: node 0 cannot tell it from one that has no machine yet."""

    name = "random"
    summary = "kills, stops, hangs and errors of workers and of nodes, at random times; then a clean end"
    hooks = True
    repeated = True
    lasting = True
    default_seconds = 60.0

    def __post_init__(self) -> None:
        self._next: float | None = None
        self.put: list[str] = []
        """What was done, in order."""

    def overrides(self) -> Sequence[str]:
        return ["checkpoint.every_steps=5"]

    def when(self, progress: GangProgress) -> bool:
        now = time.monotonic()
        if self._next is None and any(isinstance(e, StepDone) for e in progress.events):
            self._next = now + self._pause()
        return self._next is not None and now >= self._next and self._are_there(progress)

    def _are_there(self, progress: GangProgress) -> bool:
        """All nodes, in the newest attempt."""
        started = [e for e in progress.events if isinstance(e, GenerationStarted)]
        formed = min((e.generation for e in started if e.node == 0 and e.attempt == progress.attempt), default=None)
        there = {e.node for e in started if formed is not None and e.generation >= formed}
        return len(there) == self.size.nodes

    def inject(self, gang: "DrillGang") -> float:
        kinds, weights = zip(*DRAWN, strict=True)
        kind = self.random.choices(kinds, weights)[0]
        rank = self.random.randrange(self.size.ranks)
        self._next = time.monotonic() + self._pause()
        pid = gang.find_worker(rank)
        if kind is None or pid is None:  # between two generations there is no worker, but always a node
            self.put.append(f"node-kill {self.size.node_of(rank)}")
            return gang.kill_node(self.size.node_of(rank))
        self.put.append(f"{kind.name} {rank}")
        fault: WorkerFault = kind(self.size, self.random, self.folder, self.flow)
        fault.rank = rank
        try:
            return fault.inject(gang)
        except (ProcessLookupError, TimeoutError):  # it ended meanwhile, by an earlier fault
            return time.time()

    def _pause(self) -> float:
        return self.random.expovariate(1 / MEAN_SECONDS)

    def expected(self) -> Expectation:
        return Expectation(way="next attempt")
