"""Drills in which a node is lost: its processes are killed, or the network between nodes parts.

In the latter each node is in a network namespace of its own; its storage is the machine's, so that a node that is cut
off could still write to it.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import ClassVar

from convoy.drills.checks import late_stop_problems, wrong_restore_problems
from convoy.drills.fault import Expectation, Fault
from convoy.drills.gang import DrillGang
from convoy.drills.observe import Observation
from convoy.drills.testbed.namespaces import Network
from convoy.job.events.registry import Event, PeerSuspected


class _NodeFault(Fault):
    """A node is lost to the others."""

    def missing_requirement(self) -> str | None:
        return None if self.size.nodes > 1 else "a second node"


class NodeKill(_NodeFault):
    """A node that leads nobody."""

    name = "node-kill"
    summary = "all processes of a node other than node 0 are killed, its agent first"
    target_detected: ClassVar[float | None] = 1.5
    target_recovered = 12.0

    @cached_property
    def victim(self) -> int:
        """Its node."""
        return self.random.randrange(1, self.size.nodes)

    def inject(self, gang: DrillGang) -> float:
        return gang.kill_node(self.victim)

    def expected(self) -> Expectation:
        return Expectation(way="next attempt", causes=frozenset({"node_gone"}), node=self.victim)

    def own_problems(self, trial: Observation) -> list[str]:
        others = set(range(self.size.nodes)) - {self.victim}
        return late_stop_problems(trial, others)


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


class Partition(_NodeFault):
    """One node is cut off, any of them; the next attempt has all nodes again."""

    name = "partition"
    summary = "one node can no longer send or receive anything, and no connection is closed"
    target_detected = 2.0

    @cached_property
    def victim(self) -> int:
        """The node that is cut off."""
        return self.random.randrange(self.size.nodes)

    @cached_property
    def network(self) -> Network:
        return Network(self.size.nodes)

    def setup(self, stack: ExitStack) -> None:
        stack.enter_context(self.network)

    def command_prefix(self, node: int) -> Sequence[str]:
        return self.network.command_prefix(node)

    def main_host(self) -> str:
        return self.network.addresses[0]

    def environment(self, node: int) -> Mapping[str, str]:
        # The machine's name resolves to an address that no namespace has.
        return {"GLOO_SOCKET_IFNAME": "eth0"}

    def inject(self, gang: DrillGang) -> float:
        at = time.time()
        self.network.unplug(self.victim)
        return at

    def repair(self, gang: DrillGang) -> None:
        self.network.plug(self.victim)

    def expected(self) -> Expectation:
        # Of two nodes neither can know which one is cut off.
        node = self.victim if self.size.nodes > 2 else None
        return Expectation(way="next attempt", causes=frozenset({"node_silent", "cut_off"}), node=node)

    def own_problems(self, trial: Observation) -> list[str]:
        return [*late_stop_problems(trial, range(self.size.nodes)), *wrong_restore_problems(trial)]


class PartitionHeal(Partition):
    """The worst moment to heal: some agent has drawn its conclusions, and what the others sent before comes now."""

    name = "partition-heal"
    summary = "one node is cut off, and the network heals as soon as some agent suspects another"

    def inject(self, gang: DrillGang) -> float:
        at = super().inject(gang)

        def suspects_peer(event: Event) -> bool:
            return isinstance(event, PeerSuspected) and event.t > at

        gang.wait_for_event("a suspicion", suspects_peer)
        self.network.plug(self.victim)
        return at

    def repair(self, gang: DrillGang) -> None:
        """It is whole already."""

    def expected(self) -> Expectation:
        # Who has suspected another when it heals may be one of two alone, of whom neither can know which is cut off.
        return Expectation(way="next attempt", causes=frozenset({"node_silent", "cut_off"}))
