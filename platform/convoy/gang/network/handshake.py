"""What agents tell each other, as JSON, and whether they fit together."""

import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

import convoy
from convoy.gang.network.framing import frame

PROTOCOL = 2

SKEW_SECONDS = 5.0
"""Clocks that differ by more are told of: events of several nodes are ordered by the clock."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True)

    def encoded(self) -> bytes:
        return self.model_dump_json().encode()

    def framed(self) -> bytes:
        """As it is sent. Raises ValueError if it is too long."""
        return frame(self.encoded())


class Hello(_Message):
    """The first message on a connection, from who made it, sealed as `authentication.py` has it. Of a version that
    differs the first three fields may be read."""

    kind: Literal["hello"] = "hello"
    protocol: int = PROTOCOL
    convoy: str = convoy.__version__
    node: int
    to: int = 0
    """The node that is to be reached."""
    nodes: int
    nproc: int
    """Workers on the node."""
    hostname: str
    port: int
    """Where this node listens."""
    python: str = ".".join(map(str, sys.version_info[:2]))
    wall: float
    """Unix time of sending."""


class Welcome(_Message):
    """The answer to a hello that fits, sealed."""

    kind: Literal["welcome"] = "welcome"
    node: int
    hostname: str
    received: float
    """Unix time at which the hello was read."""
    wall: float


class Here(_Message):
    """The answer to a welcome: both ends know each other."""

    kind: Literal["here"] = "here"
    skew_seconds: float
    """The sender's clock minus the receiver's."""
    error_seconds: float


class Refused(_Message):
    """The answer to a hello that does not fit, sealed, by another token where it comes from another gang."""

    kind: Literal["refused"] = "refused"
    reason: str


class Member(BaseModel):
    """A node, and where it listens as node 0 sees it."""

    model_config = ConfigDict(frozen=True)

    node: int
    hostname: str
    address: str
    port: int


class Roster(_Message):
    """From node 0, when all have come: connect to those below you."""

    kind: Literal["roster"] = "roster"
    members: tuple[Member, ...]
    """All nodes in their order; of node 0 the address is empty."""


class Meshed(_Message):
    """To node 0: the sender is connected with all others."""

    kind: Literal["meshed"] = "meshed"


class Formed(_Message):
    """From node 0: everybody is."""

    kind: Literal["formed"] = "formed"


class Failed(_Message):
    """The nodes cannot come together: to node 0, and from it to all."""

    kind: Literal["failed"] = "failed"
    node: int | None
    reason: str


class Beat(_Message):
    """The sender lives."""

    kind: Literal["beat"] = "beat"


class Told(_Message):
    """What the agent above has to say."""

    kind: Literal["told"] = "told"
    body: dict[str, Any]


class NotHeard(_Message):
    """To all, and passed on to `node` by who has it at first hand: `by` does not hear `node`."""

    kind: Literal["not_heard"] = "not_heard"
    node: int
    by: int
    seconds: float
    number: int
    """How many silences of the node `by` has told of: the same is heard on several ways."""


class Bye(_Message):
    """The sender leaves in good order. Nothing follows."""

    kind: Literal["bye"] = "bye"


Message = Annotated[
    Hello | Welcome | Here | Refused | Roster | Meshed | Formed | Failed | Beat | Told | NotHeard | Bye,
    Field(discriminator="kind"),
]

MESSAGES: TypeAdapter[Message] = TypeAdapter(Message)


class _AnyHello(BaseModel):
    """What a hello of any version has."""

    kind: Literal["hello"]
    protocol: int
    convoy: str


class MisfitError(Exception):
    """A node of this gang cannot be part of it."""


def read_hello(data: bytes, ours: Hello) -> Hello:
    """The hello of a node that has proven to know the token. The error's text is one line for who sent it.

    ours: what this node says of itself. Raises MisfitError for another version, size or place, and ValueError for what
    is no hello.
    """
    theirs = _AnyHello.model_validate_json(data)
    if (theirs.protocol, theirs.convoy) != (ours.protocol, ours.convoy):
        raise MisfitError(
            f"a node has convoy {theirs.convoy} (protocol {theirs.protocol}), and node {ours.node} on {ours.hostname} "
            f"{ours.convoy} (protocol {ours.protocol}): all nodes need the same"
        )
    hello = Hello.model_validate_json(data)
    who = f"node {hello.node} on {hello.hostname}"
    for key, has, needs in (
        ("nodes", hello.nodes, ours.nodes),
        ("nproc_per_node", hello.nproc, ours.nproc),
        ("Python", hello.python, ours.python),
    ):
        if has != needs:
            raise MisfitError(
                f"{who} has {key} = {has}, and node {ours.node} on {ours.hostname} {needs}: all nodes need the same"
            )
    if hello.to != ours.node:
        raise MisfitError(
            f"{who} called node {hello.to} and reached node {ours.node} on {ours.hostname}: "
            "each node needs an address of its own"
        )
    if not ours.node < hello.node < ours.nodes:
        raise MisfitError(f"{who} connected to node {ours.node} of {ours.nodes}: nodes connect to those before them")
    return hello


@dataclass(frozen=True)
class Skew:
    """How far another clock is ahead of ours; behind, if negative."""

    seconds: float
    error_seconds: float
    """Half of what the exchange took: the truth lies within."""

    def warning(self, node: int, own_node: int) -> str | None:
        """One line if the clocks surely differ by more than SKEW_SECONDS."""
        if abs(self.seconds) - self.error_seconds <= SKEW_SECONDS:
            return None
        way = "ahead of" if self.seconds > 0 else "behind"
        return (
            f"the clock of node {node} is {abs(self.seconds):.1f} s {way} node {own_node}'s: "
            "what is told of several nodes may come in the wrong order; check their time synchronisation"
        )


def skew(sent: float, received: float, answered: float, now: float) -> Skew:
    """The clock of who answered, from four Unix times: ours, theirs, theirs, ours.

    Source: the on-wire protocol of NTP, RFC 5905 section 8.
    """
    return Skew(
        seconds=((received - sent) + (answered - now)) / 2, error_seconds=abs((now - sent) - (answered - received)) / 2
    )
