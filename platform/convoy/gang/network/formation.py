"""How agents come together: a pure account of who has come, which says what is to be done next.

All connect to node 0. When every node has, node 0 tells each where the others are, and each connects to those before
it; when each has told node 0 that it is connected with all, node 0 tells all that the gang is formed.
"""

from dataclasses import dataclass

from convoy.gang.network import handshake
from convoy.gang.network.handshake import Hello, Member
from convoy.gang.network.peer_events import Failed, Formed


@dataclass(frozen=True)
class Send:
    """Send a message; to None: to all that are connected."""

    to: int | None
    message: handshake.Roster | handshake.Meshed | handshake.Formed | handshake.Failed


@dataclass(frozen=True)
class Dial:
    """Connect to a node."""

    member: Member


Step = Send | Dial | Formed | Failed


class Formation:
    """One node's view. Each method returns what is to be done now."""

    def __init__(self, ours: Hello, join_seconds: float, now: float) -> None:
        """join_seconds: node 0 waits this long for the others."""
        self._ours = ours
        self._join_seconds = join_seconds
        self._deadline = now + join_seconds
        self._joined: dict[int, Member] = {}
        self._meshed: set[int] = set()
        self._members: tuple[Member, ...] = ()
        self.ended = False
        """The gang is formed, or will never be."""

    def begin(self) -> list[Step]:
        """A gang of one node is formed at once."""
        return self._next() if self._leads else []

    def joined(self, member: Member) -> list[Step]:
        """The node is connected with this one."""
        self._joined[member.node] = member
        return [] if self.ended else self._next()

    def received(self, node: int, message: handshake.Message) -> list[Step]:
        """What a node sent; of what does not belong to coming together nothing follows."""
        match message:
            case _ if self.ended:
                return []
            case handshake.Failed():
                return self.fail(message.node, message.reason, by=node)
            case handshake.Meshed() if self._leads:
                self._meshed.add(node)
                return self._next()
            case handshake.Roster() if node == 0:
                self._members = message.members
                before = [Dial(member) for member in message.members if 0 < member.node < self._ours.node]
                return [*before, *self._next()]
            case handshake.Formed() if node == 0:
                self.ended = True
                return [Formed(self._members)]
        return []

    def gone(self, node: int) -> list[Step]:
        """The node's agent has ended."""
        ended = f"node {node} ended before all {self._ours.nodes} nodes had come together"
        return self.fail(node, ended) if self._leads else []

    def tick(self, now: float) -> list[Step]:
        """Node 0 does not wait for ever; the others wait for node 0, whose beats they hear."""
        if not self._leads or self._members or now < self._deadline:
            return []
        missing = [node for node in range(1, self._ours.nodes) if node not in self._joined]
        which = f"node{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of {self._ours.nodes}"
        return self.fail(missing[0], f"{which} did not come within {self._join_seconds:g} s")

    def fail(self, node: int | None, reason: str, by: int | None = None) -> list[Step]:
        """The gang cannot be formed. by: who says so; None: this node found out."""
        if self.ended:
            return []
        self.ended = True
        failed = handshake.Failed(node=node, reason=reason)
        if self._leads:
            return [Send(None, failed), Failed(node, reason)]
        return [*([Send(0, failed)] if by is None else []), Failed(node, reason)]

    @property
    def _leads(self) -> bool:
        return self._ours.node == 0

    def _next(self) -> list[Step]:
        if len(self._joined) < self._ours.nodes - 1:
            return []
        if not self._leads:
            return [Send(0, handshake.Meshed())] if self._members else []
        steps: list[Step] = []
        if not self._members:
            own = Member(node=0, hostname=self._ours.hostname, address="", port=self._ours.port)
            self._members = (own, *(self._joined[node] for node in sorted(self._joined)))
            steps.append(Send(None, handshake.Roster(members=self._members)))
        if len(self._meshed) == self._ours.nodes - 1:
            self.ended = True
            steps += [Send(None, handshake.Formed()), Formed(self._members)]
        return steps
