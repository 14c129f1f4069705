"""How agents form a mesh: a pure account of who has joined, which says what to do next; and events about peers.

All connect to node 0. When every node has, node 0 sends each the addresses of the others, and each connects to those
with a lower number; when each has reported to node 0 that it is connected to all, node 0 informs all that the gang is
formed.
"""

from dataclasses import dataclass
from typing import Any

from convoy.gang.network import handshake
from convoy.gang.network.handshake import Hello, NodeAddress, Skew


@dataclass(frozen=True)
class PeerJoined:
    """The node is connected to this one."""

    node: int
    skew: Skew
    """Of its clock."""


@dataclass(frozen=True)
class GangFormed:
    """Every node is connected to every other."""


@dataclass(frozen=True)
class PeersFailed:
    """The gang will not be formed, or this node can no longer see the others; the reason is one line."""

    reason: str


@dataclass(frozen=True)
class PayloadReceived:
    """What the node's agent sent."""

    node: int
    body: dict[str, Any]
    at: float
    """When it arrived, by time.monotonic()."""


@dataclass(frozen=True)
class PeerSilent:
    """The node is not heard: it is frozen, or cut off. Reported once per silence."""

    node: int
    seconds: float
    """Since it was last heard."""
    phi: float


@dataclass(frozen=True)
class PeerReportedSilent:
    """Node `by` reports that it does not hear `node`, which may be this node."""

    node: int
    by: int
    seconds: float


@dataclass(frozen=True)
class PeerGone:
    """The node's agent ended without a goodbye; `how` its connection did."""

    node: int
    how: str


@dataclass(frozen=True)
class PeerLeft:
    """The node's agent said goodbye."""

    node: int


PeerEvent = (
    PeerJoined | GangFormed | PeersFailed | PayloadReceived | PeerSilent | PeerReportedSilent | PeerGone | PeerLeft
)


@dataclass(frozen=True)
class SendMessage:
    """Send a message to a node; None: to all that are connected."""

    to: int | None
    message: handshake.AddressList | handshake.MeshReady | handshake.FormationComplete | handshake.FormationFailed


@dataclass(frozen=True)
class ConnectTo:
    """Connect to a node."""

    node: NodeAddress


Action = SendMessage | ConnectTo | GangFormed | PeersFailed


class Formation:
    """One node's view. Each method returns what is to be done now."""

    def __init__(self, ours: Hello, join_seconds: float, now: float) -> None:
        """join_seconds: node 0 waits this long for the others."""
        self._ours = ours
        self._leads = ours.node == 0
        self._join_seconds = join_seconds
        self._deadline = now + join_seconds
        self._joined: dict[int, NodeAddress] = {}
        self._ready: set[int] = set()
        self._nodes: tuple[NodeAddress, ...] = ()
        self.ended = False
        """The gang is formed, or never will be."""

    def begin(self) -> list[Action]:
        """A gang of one node is formed at once."""
        return self._next_actions() if self._leads else []

    def on_joined(self, node: NodeAddress) -> list[Action]:
        """The node is connected to this one."""
        self._joined[node.node] = node
        return [] if self.ended else self._next_actions()

    def on_message(self, node: int, message: handshake.Message) -> list[Action]:
        """A node sent this; nothing follows from a message that does not belong to forming."""
        match message:
            case _ if self.ended:
                return []
            case handshake.FormationFailed():
                return self.fail(message.reason, by=node)
            case handshake.MeshReady() if self._leads:
                self._ready.add(node)
                return self._next_actions()
            case handshake.AddressList() if node == 0:
                self._nodes = message.nodes
                lower = [ConnectTo(other) for other in message.nodes if other.node < self._ours.node]
                return [*lower, *self._next_actions()]
            case handshake.FormationComplete() if node == 0:
                self.ended = True
                return [GangFormed()]
        return []

    def on_gone(self, node: int) -> list[Action]:
        """The node's agent has ended."""
        ended = f"node {node} ended before all {self._ours.nodes} nodes had come together"
        return self.fail(ended) if self._leads else []

    def on_tick(self, now: float) -> list[Action]:
        """Node 0 has a deadline; the others wait for node 0, whose beats they hear."""
        if not self._leads or self._nodes or now < self._deadline:
            return []
        missing = [node for node in range(1, self._ours.nodes) if node not in self._joined]
        which = f"node{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of {self._ours.nodes}"
        return self.fail(f"{which} did not come within {self._join_seconds:g} s")

    def fail(self, reason: str, by: int | None = None) -> list[Action]:
        """The gang cannot be formed. by: the node that reports it; None: this node."""
        if self.ended:
            return []
        self.ended = True
        failed = handshake.FormationFailed(reason=reason)
        if self._leads:
            return [SendMessage(None, failed), PeersFailed(reason)]
        return [*([SendMessage(0, failed)] if by is None else []), PeersFailed(reason)]

    def _next_actions(self) -> list[Action]:
        if len(self._joined) < self._ours.nodes - 1:
            return []
        if not self._leads:
            return [SendMessage(0, handshake.MeshReady())] if self._nodes else []
        actions: list[Action] = []
        if not self._nodes:
            self._nodes = tuple(self._joined[node] for node in sorted(self._joined))
            actions.append(SendMessage(None, handshake.AddressList(nodes=self._nodes)))
        if len(self._ready) == self._ours.nodes - 1:
            self.ended = True
            actions += [SendMessage(None, handshake.FormationComplete()), GangFormed()]
        return actions
