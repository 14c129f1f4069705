"""What an agent learns of the other nodes."""

from dataclasses import dataclass
from typing import Any

from convoy.gang.network.handshake import Member, Skew


@dataclass(frozen=True)
class Joined:
    """The node is connected with this one."""

    node: int
    hostname: str
    skew: Skew
    """Of its clock."""


@dataclass(frozen=True)
class Formed:
    """Every node is connected with every other."""

    members: tuple[Member, ...]


@dataclass(frozen=True)
class Failed:
    """The nodes will not come together; the reason is one line."""

    node: int | None
    """Whose fault it is, where that is known."""
    reason: str


@dataclass(frozen=True)
class Said:
    """What the node's agent sent."""

    node: int
    body: dict[str, Any]
    at: float
    """When it came, of time.monotonic()."""


@dataclass(frozen=True)
class Silent:
    """The node is not heard: it is frozen, or cut off. It comes once for each silence."""

    node: int
    seconds: float
    """Since it was last heard."""
    phi: float


@dataclass(frozen=True)
class Unheard:
    """Another node says that `node` is silent to it. That may be this node."""

    node: int
    by: int
    seconds: float


@dataclass(frozen=True)
class Gone:
    """The node's agent ended without a goodbye; `how` its connection did."""

    node: int
    how: str


@dataclass(frozen=True)
class Left:
    """The node's agent said goodbye."""

    node: int


PeerEvent = Joined | Formed | Failed | Said | Silent | Unheard | Gone | Left
