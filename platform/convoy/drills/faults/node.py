"""Drills in which a node is lost: its agent and all that it started are killed at once, and its connections close."""

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from convoy.drills.checks import STOPPED_SECONDS, stopped_late
from convoy.drills.fault import Expected, Fault

if TYPE_CHECKING:
    from convoy.drills.gang import DrillGang
    from convoy.drills.observe import Observed


class NodeKill(Fault):
    """A node that leads nobody."""

    name = "node-kill"
    summary = "all processes of a node other than node 0 are killed, its agent first"
    target_detected: ClassVar[float | None] = 1.5
    target_recovered = 12.0
    stopped_seconds: ClassVar[float] = STOPPED_SECONDS
    """Target for the workers of all other nodes."""

    @cached_property
    def victim(self) -> int:
        """Its node."""
        return self.random.randrange(1, self.size.nodes)

    def missing(self) -> str | None:
        return None if self.size.nodes > 1 else "a second node"

    def inject(self, gang: "DrillGang") -> float:
        return gang.kill_node(self.victim)

    def expected(self) -> Expected:
        return Expected(way="next attempt", causes=frozenset({"node_gone"}), node=self.victim)

    def check(self, trial: "Observed") -> list[str]:
        others = set(range(self.size.nodes)) - {self.victim}
        return stopped_late(trial, others, self.stopped_seconds)


class Node0Kill(NodeKill):
    """The node whose agent decides for all, and on which rank 0 is."""

    name = "node0-kill"
    summary = "all processes of node 0 are killed, which leads the gang"
    target_detected = None
    target_recovered = 20.0

    @cached_property
    def victim(self) -> int:
        """Its node."""
        return 0


FAULTS: tuple[type[Fault], ...] = (NodeKill, Node0Kill)
