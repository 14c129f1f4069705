"""What agents send each other while they connect, as JSON, and whether they fit together."""

import hashlib
import hmac
import secrets
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

import convoy
from convoy.gang.network.connection import frame

PROTOCOL = 4

SKEW_SECONDS = 5.0
"""A warning is printed if clocks differ by more: events of several nodes are ordered by the clock."""


Role = Literal["caller", "called"]
"""The caller made the connection."""

NONCE_BYTES = 32

_PROOF_BYTES = hashlib.sha256().digest_size

_OTHER: dict[Role, Role] = {"caller": "called", "called": "caller"}


class _Message(BaseModel, frozen=True):
    def encoded(self) -> bytes:
        return self.model_dump_json().encode()

    def framed(self) -> bytes:
        """As it is sent. Raises ValueError if it is too long."""
        return frame(self.encoded())


class Hello(_Message):
    """The first message on a connection, from the end that opened it, sealed by an `Authenticator`. The
    first three fields can be read in every version."""

    kind: Literal["hello"] = "hello"
    protocol: int = PROTOCOL
    convoy: str = convoy.__version__
    node: int
    to: int = 0
    """The node that it means to reach."""
    nodes: int
    nproc: int
    """Workers on the node."""
    hostname: str
    port: int
    """Where this node listens."""
    python: str = ".".join(map(str, sys.version_info[:2]))
    wall: float
    """Unix time of sending."""


class HelloAccepted(_Message):
    """The answer to a hello that fits, sealed."""

    kind: Literal["welcome"] = "welcome"
    node: int
    received: float
    """Unix time at which the hello was read."""
    wall: float


class Ack(_Message):
    """The answer to a welcome: both ends have identified themselves."""

    kind: Literal["ack"] = "ack"
    skew_seconds: float
    """The sender's clock minus the receiver's."""
    error_seconds: float


class HelloRefused(_Message):
    """The answer to a hello that does not fit; sealed with another token where it comes from another gang."""

    kind: Literal["refused"] = "refused"
    reason: str


class NodeAddress(BaseModel, frozen=True):
    """A node, and where it listens as node 0 sees it."""

    node: int
    address: str
    port: int


class AddressList(_Message):
    """From node 0, when all have joined: connect to those with a lower number than yours."""

    kind: Literal["addresses"] = "addresses"
    nodes: tuple[NodeAddress, ...]
    """All nodes but node 0."""


class MeshReady(_Message):
    """To node 0: the sender is connected to all others."""

    kind: Literal["mesh_ready"] = "mesh_ready"


class FormationComplete(_Message):
    """From node 0: every node is."""

    kind: Literal["formed"] = "formed"


class FormationFailed(_Message):
    """The gang cannot be formed: to node 0, and from it to all."""

    kind: Literal["failed"] = "failed"
    reason: str


class Beat(_Message):
    """The sender is alive."""

    kind: Literal["beat"] = "beat"


class Payload(_Message):
    """A message of the supervisor."""

    kind: Literal["payload"] = "payload"
    body: dict[str, Any]


class SilenceReport(_Message):
    """`by` does not hear `node`. It is sent to all, and each that has it from `by` forwards it to `node`."""

    kind: Literal["silence"] = "silence"
    node: int
    by: int
    seconds: float
    number: int
    """Counts the silences of `node` that `by` has reported: the same report arrives by several ways."""


class Bye(_Message):
    """The sender leaves in good order. Nothing follows."""

    kind: Literal["bye"] = "bye"


Message = Annotated[
    Hello
    | HelloAccepted
    | Ack
    | HelloRefused
    | AddressList
    | MeshReady
    | FormationComplete
    | FormationFailed
    | Beat
    | Payload
    | SilenceReport
    | Bye,
    Field(discriminator="kind"),
]

MESSAGES: TypeAdapter[Message] = TypeAdapter(Message)


class _AnyHello(BaseModel):
    """The fields that a hello of any version has."""

    kind: Literal["hello"]
    protocol: int
    convoy: str


class IncompatibleNodeError(Exception):
    """A node cannot be part of the gang."""


def read_hello(data: bytes, ours: Hello) -> Hello:
    """The hello of a node that has proven to know the token.

    ours: this node's own hello. Raises IncompatibleNodeError, with one line for the sender, for another version, size
    or place, and ValueError for what is not a hello.
    """
    theirs = _AnyHello.model_validate_json(data)
    if (theirs.protocol, theirs.convoy) != (ours.protocol, ours.convoy):
        raise IncompatibleNodeError(
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
            raise IncompatibleNodeError(
                f"{who} has {key} = {has}, and node {ours.node} on {ours.hostname} {needs}: all nodes need the same"
            )
    if hello.to != ours.node:
        raise IncompatibleNodeError(
            f"{who} called node {hello.to} and reached node {ours.node} on {ours.hostname}: "
            "each node needs an address of its own"
        )
    if not ours.node < hello.node < ours.nodes:
        raise IncompatibleNodeError(
            f"{who} connected to node {ours.node} of {ours.nodes}: nodes connect to those before them"
        )
    return hello


@dataclass(frozen=True)
class Skew:
    """How far another clock is ahead of ours; negative if it is behind."""

    seconds: float
    error_seconds: float
    """Half of the time the exchange took: the true skew is within this distance."""

    def warning(self, node: int, own_node: int) -> str | None:
        """One line if the clocks certainly differ by more than SKEW_SECONDS."""
        if abs(self.seconds) - self.error_seconds <= SKEW_SECONDS:
            return None
        way = "ahead of" if self.seconds > 0 else "behind"
        return (
            f"the clock of node {node} is {abs(self.seconds):.1f} s {way} node {own_node}'s: "
            "events of several nodes may appear in the wrong order; check their time synchronisation"
        )


def skew(sent: float, received: float, answered: float, now: float) -> Skew:
    """Skew of the other end's clock, from four Unix times: ours, theirs, theirs, ours.

    Source: the on-wire protocol of NTP, RFC 5905 section 8.
    """
    return Skew(
        seconds=((received - sent) + (answered - now)) / 2, error_seconds=abs((now - sent) - (answered - received)) / 2
    )


class Authenticator:
    """One end of one connection: both ends prove that they know the gang's token, without sending it.

    Each end first sends a nonce: 32 random bytes, fresh for this connection. Each end's next message then carries an
    HMAC-SHA256, keyed by the token, over its role, both nonces and the message:

        caller → called   nonce
        called → caller   nonce
        caller → called   HMAC(token, "caller" + nonces + hello) + hello
        called → caller   HMAC(token, "called" + nonces + welcome) + welcome

    So nothing that was overheard proves anything on another connection, and no proof can be sent back to the end that
    made it. The hello names its sender and the node that it means to reach. A token serves one formation.
    """

    def __init__(self, token: str, role: Role) -> None:
        self._token, self._role = token.encode(), role
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        """Ours."""
        self._theirs: bytes | None = None

    @property
    def is_challenged(self) -> bool:
        """Whether the other end's nonce has arrived."""
        return self._theirs is not None

    def set_challenge(self, nonce: bytes) -> None:
        """Take the other end's nonce. Raises ValueError if it has the wrong length."""
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce of {NONCE_BYTES} bytes was expected, not {len(nonce)} bytes")
        self._theirs = nonce

    def seal(self, message: bytes) -> bytes:
        """The message with this end's proof."""
        return self._proof(self._role, message) + message

    def unseal_and_verify(self, data: bytes) -> tuple[bytes, bool]:
        """The message of the other end, and whether its proof is right."""
        proof, message = data[:_PROOF_BYTES], data[_PROOF_BYTES:]
        return message, hmac.compare_digest(proof, self._proof(_OTHER[self._role], message))

    def _proof(self, role: Role, message: bytes) -> bytes:
        assert self._theirs is not None
        nonces = (self.nonce, self._theirs) if self._role == "caller" else (self._theirs, self.nonce)
        return hmac.digest(self._token, b"".join((role.encode(), *nonces, message)), "sha256")
