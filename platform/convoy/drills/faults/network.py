"""Drills in which the network between nodes parts. Each node is in a network namespace of its own; its storage is the
machine's, so that a node that is cut off could still write what it likes."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from convoy.drills.checks import STOPPED_SECONDS, read_otherwise, stopped_late
from convoy.drills.fault import Expected, Fault
from convoy.drills.testbed.namespaces import Network, why_no_network
from convoy.job.events.types import AnyEvent, PeerSuspected

if TYPE_CHECKING:
    from convoy.drills.gang import DrillGang
    from convoy.drills.observe import Observed


class Partition(Fault):
    """One node is cut off, any of them; the next attempt has all nodes again."""

    name = "partition"
    summary = "nothing comes from one node or to it any more, and nobody is told"
    target_detected = 2.0
    stopped_seconds: ClassVar[float] = STOPPED_SECONDS
    """Target for the workers of both sides."""

    @cached_property
    def victim(self) -> int:
        """The node that is cut off."""
        return self.random.randrange(self.size.nodes)

    @cached_property
    def network(self) -> Network:
        return Network(self.size.nodes)

    def missing(self) -> str | None:
        if self.flow:
            return "nodes apart: Metaflow starts all of a local run in one network"
        return why_no_network() if self.size.nodes > 1 else "a second node"

    def setup(self, stack: ExitStack) -> None:
        stack.enter_context(self.network)

    def command(self, node: int) -> Sequence[str]:
        return self.network.prefix(node)

    def main_host(self) -> str:
        return self.network.addresses[0]

    def environment(self, node: int) -> Mapping[str, str]:
        # The machine's name stands for an address that no namespace has.
        return {"GLOO_SOCKET_IFNAME": "eth0"}

    def inject(self, gang: "DrillGang") -> float:
        at = time.time()
        self.network.unplug(self.victim)
        return at

    def mend(self, gang: "DrillGang") -> None:
        self.network.plug(self.victim)

    def expected(self) -> Expected:
        # Of two nodes neither can tell which one is cut off.
        node = self.victim if self.size.nodes > 2 else None
        return Expected(way="next attempt", causes=frozenset({"node_silent", "cut_off"}), node=node)

    def check(self, trial: "Observed") -> list[str]:
        return [
            *stopped_late(trial, set(range(self.size.nodes)), self.stopped_seconds),
            *read_otherwise(trial),
        ]


class PartitionHeal(Partition):
    """The worst moment to heal: some agent has drawn its conclusions, and what the others sent before comes now."""

    name = "partition-heal"
    summary = "one node is cut off, and the network heals as soon as some agent suspects another"

    def inject(self, gang: "DrillGang") -> float:
        at = super().inject(gang)

        def suspected(event: AnyEvent) -> bool:
            return isinstance(event, PeerSuspected) and event.t > at

        gang.wait_for_event("a suspicion", suspected)
        self.network.plug(self.victim)
        return at

    def mend(self, gang: "DrillGang") -> None:
        """It is whole already."""

    def expected(self) -> Expected:
        # Who has suspected another when it heals may be one of two alone, of whom neither can tell which is cut off.
        return Expected(way="next attempt", causes=frozenset({"node_silent", "cut_off"}))


FAULTS: tuple[type[Fault], ...] = (Partition, PartitionHeal)
