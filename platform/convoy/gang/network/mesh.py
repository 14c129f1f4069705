"""An agent's part in the mesh: handshakes, beats, and the verdict on which peers are silent. One thread, which never
waits for any one peer."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from convoy.gang.network import handshake
from convoy.gang.network.connection import Connection, Connections, frame
from convoy.gang.network.failure_detector import BEAT_SECONDS, AwakeClock, FailureDetector
from convoy.gang.network.formation import (
    Action,
    ConnectTo,
    Formation,
    PayloadReceived,
    PeerEvent,
    PeerGone,
    PeerJoined,
    PeerLeft,
    PeerReportedSilent,
    PeerSilent,
    SendMessage,
)
from convoy.gang.network.handshake import Authenticator, Hello, NodeAddress, Skew
from convoy.gang.network.sockets import Dialer, listen

HELLO_SECONDS = 5.0
"""An end that connects must identify itself within this time."""

ANSWER_SECONDS = 30.0
"""An end that accepted a connection must answer the hello within this time."""

CONNECT_SECONDS = 3.0
"""For one attempt to connect; then the next one follows."""

MESH_SECONDS = 30.0
"""For a node to connect to another, once all have joined node 0."""

MAX_UNIDENTIFIED = 256
"""Connections whose other end has not identified itself. A further one replaces the oldest, so that ends which only
hold connections open keep no node out: a node identifies itself within a few round trips."""

_TURN_SECONDS = 0.1
_BEAT = handshake.Beat().encoded()
_BEAT_FRAME = handshake.Beat().framed()


@dataclass
class _Handshake:
    """The state of a connection whose other end has not identified itself."""

    deadline: float
    dialer: Dialer | None
    """Which opened it; None: the other end did."""
    authenticator: Authenticator
    sent: float = 0.0
    """Unix time of our hello."""


@dataclass
class _Peer:
    """Another node that is connected."""

    connection: Connection
    detector: FailureDetector
    hello: Hello | None
    """Its own; None: this node opened the connection."""
    is_silent: bool = False
    silences: int = 0


class Mesh:
    """Not thread-safe: one thread calls `run_turn` again and again."""

    def __init__(
        self,
        ours: Hello,
        token: str,
        listener: socket.socket | None,
        first: tuple[str, int] | None,
        join_seconds: float,
        events: SimpleQueue[PeerEvent],
    ) -> None:
        """ours: this node's hello. listener: owned by the mesh from now on; None: this node listens at the address
        from which it reaches node 0. first: where node 0 listens; None: this is node 0. join_seconds: for the others to
        join, or for this node to connect to node 0.
        """
        self._ours = ours
        self._token = token
        self._listener: socket.socket | None = None
        self._events = events
        self._now = time.monotonic()
        self._clock = AwakeClock(self._now)
        self._awake = 0.0
        self._next_beat = self._now
        self._connections = Connections(self)
        self._unidentified: dict[Connection, _Handshake] = {}
        self._nodes: dict[Connection, int] = {}
        self._peers: dict[int, _Peer] = {}
        self._dialers: list[Dialer] = []
        self._silences: set[tuple[int, int, int]] = set()
        self._leaving = False
        self._formation = Formation(ours, join_seconds, self._now)
        if listener is not None:
            self._listen(listener)
        if first is not None:
            self._dialers.append(Dialer(0, *first, join_seconds, self._now))
        self._carry_out(self._formation.begin())

    def watch(self, socket_: socket.socket, on_readable: Callable[[], None]) -> None:
        """Call `on_readable` in a turn in which the socket can be read."""
        self._connections.watch(socket_, on_readable)

    def send(self, to: int | None, framed: bytes) -> None:
        """Send to a node, or to all; nothing is sent to a node that is not connected."""
        for node, peer in list(self._peers.items()):
            if to is None or node == to:
                self._connections.write(peer.connection, framed)

    def run_turn(self) -> None:
        """Wait for at most 0.1 s, and do what there is to do."""
        self._connections.serve(min(_TURN_SECONDS, self._next_beat - time.monotonic()), self._update_clock)
        self._send_beats()
        self._detect_silence()
        self._drop_overdue()
        self._dial()
        self._carry_out(self._formation.on_tick(self._now))

    def leave(self, seconds: float) -> None:
        """Say goodbye, wait until all have received it, but no longer than `seconds`, and release everything."""
        self._leaving = True
        self._stop_listening()
        for connection in list(self._unidentified):
            self._connections.drop(connection)
        self.send(None, handshake.Bye().framed())
        deadline, ended = time.monotonic() + seconds, set[Connection]()
        while self._connections and time.monotonic() < deadline:
            for connection in self._nodes.keys() - ended:
                if connection in self._connections and not connection.wants_to_write:
                    connection.end_writing()
                    ended.add(connection)
            self._connections.serve(min(_TURN_SECONDS, deadline - time.monotonic()))
        self.close()

    def close(self) -> None:
        """Release everything at once."""
        self._stop_listening()
        self._connections.close()

    # What is due in a turn.

    def _update_clock(self) -> None:
        self._now = time.monotonic()
        self._awake = self._clock.tick(self._now)

    def _send_beats(self) -> None:
        if self._now < self._next_beat:
            return
        self._next_beat = max(self._next_beat + BEAT_SECONDS, self._now)
        for peer in list(self._peers.values()):
            # One beat may be in flight. More would add no information, and the stream would no longer count as thin
            # (see Connection).
            if peer.connection.unacknowledged_bytes < 2 * len(_BEAT_FRAME):
                self._connections.write(peer.connection, _BEAT_FRAME)

    def _detect_silence(self) -> None:
        for node, peer in list(self._peers.items()):
            suspect = peer.detector.is_suspect(self._awake)
            if suspect and not peer.is_silent:
                peer.silences += 1
                seconds, phi = peer.detector.quiet_seconds(self._awake), peer.detector.phi(self._awake)
                self._events.put(PeerSilent(node, seconds, phi))
                number = peer.silences
                report = handshake.SilenceReport(node=node, by=self._ours.node, seconds=seconds, number=number)
                self.send(None, report.framed())
            peer.is_silent = suspect

    def _drop_overdue(self) -> None:
        """Drop connections whose other end did not identify itself in time."""
        for connection, pending in list(self._unidentified.items()):
            if self._now < pending.deadline:
                continue
            self._connections.drop(connection)
            if pending.dialer is None or connection.connecting:
                self.on_lost(connection, "timed out")
                continue
            del self._unidentified[connection]
            took = f"{pending.dialer.place} took the connection and did not answer as node {pending.dialer.node}"
            self._carry_out(self._formation.fail(f"{took} within {ANSWER_SECONDS:g} s"))

    def _dial(self) -> None:
        for dialer in list(self._dialers):
            if dialer.is_late(self._now):
                who = f"node {self._ours.node} on {self._ours.hostname}"
                self._carry_out(self._formation.fail(f"{who} {dialer.failure_text}"))
            elif (opened := dialer.try_connect(self._now)) is not None:
                connection = self._connections.add(opened, None)
                authenticator = Authenticator(self._token, "caller")
                self._unidentified[connection] = _Handshake(self._now + CONNECT_SECONDS, dialer, authenticator)

    # The handshake.

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # there are no more
            while True:
                accepted, address = listener.accept()
                self._make_room()
                connection = self._connections.add(accepted, address[0])
                pending = _Handshake(self._now + HELLO_SECONDS, None, Authenticator(self._token, "called"))
                self._unidentified[connection] = pending
                self._connections.write(connection, frame(pending.authenticator.nonce))

    def _make_room(self) -> None:
        """For one more unidentified connection."""
        accepted = [connection for connection, pending in self._unidentified.items() if pending.dialer is None]
        if len(accepted) >= MAX_UNIDENTIFIED:
            self._connections.drop(accepted[0])
            del self._unidentified[accepted[0]]

    def on_dialed(self, connection: Connection) -> None:
        pending = self._unidentified[connection]
        pending.deadline = self._now + ANSWER_SECONDS
        if self._listener is None and not self._formation.ended:
            self._listen_at_own_address(connection)
        self._connections.write(connection, frame(pending.authenticator.nonce))

    def _listen_at_own_address(self, connection: Connection) -> None:
        """At this end's address of the connection, which is the one that the others will be given."""
        try:
            listener = listen(connection.socket.getsockname()[0])
        except OSError as error:
            self._carry_out(self._formation.fail(str(error)))
            return
        self._ours = self._ours.model_copy(update={"port": listener.getsockname()[1]})
        self._listen(listener)

    def _listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._connections.watch(listener, partial(self._accept, listener))

    def _on_nonce(self, connection: Connection, pending: _Handshake, nonce: bytes) -> None:
        """The end that opened the connection answers the other's nonce with its hello."""
        pending.authenticator.set_challenge(nonce)
        if pending.dialer is not None:
            pending.sent = time.time()
            hello = self._ours.model_copy(update={"to": pending.dialer.node, "wall": pending.sent})
            self._connections.write(connection, frame(pending.authenticator.seal(hello.encoded())))

    def _on_hello(self, connection: Connection, pending: _Handshake, data: bytes) -> None:
        received = time.time()
        message, proven = pending.authenticator.unseal_and_verify(data)
        if not proven:
            us = f"node {self._ours.node} on {self._ours.hostname}"
            self._refuse(connection, pending, f"{us} belongs to another gang: the token is not its own")
            return
        try:
            hello = handshake.read_hello(message, self._ours)
            if hello.node in self._peers:
                raise handshake.IncompatibleNodeError(f"node {hello.node} on {hello.hostname} is there already")
        except handshake.IncompatibleNodeError as error:
            self._refuse(connection, pending, str(error))
            self._carry_out(self._formation.fail(str(error)))
            return
        self._add_peer(connection, hello.node, hello)
        welcome = handshake.HelloAccepted(node=self._ours.node, received=received, wall=time.time())
        self._connections.write(connection, frame(pending.authenticator.seal(welcome.encoded())))

    def _refuse(self, connection: Connection, pending: _Handshake, reason: str) -> None:
        refused = handshake.HelloRefused(reason=reason).encoded()
        self._connections.write(connection, frame(pending.authenticator.seal(refused)))
        connection.end_writing()
        self._connections.drop(connection)
        del self._unidentified[connection]

    def _on_answer(self, connection: Connection, pending: _Handshake, dialer: Dialer, data: bytes) -> None:
        """The answer to this node's hello."""
        answer, proven = pending.authenticator.unseal_and_verify(data)
        message = handshake.MESSAGES.validate_json(answer)
        match message:
            case handshake.HelloAccepted() if proven and message.node == dialer.node:
                skew = handshake.skew(pending.sent, message.received, message.wall, time.time())
                self._add_peer(connection, dialer.node, None)
                ack = handshake.Ack(skew_seconds=-skew.seconds, error_seconds=skew.error_seconds)
                self._connections.write(connection, ack.framed())
                self._on_joined(NodeAddress(node=dialer.node, address=dialer.host, port=dialer.port), skew)
            case handshake.HelloRefused():  # accepted without proof: a node of another gang cannot give one
                self._carry_out(self._formation.fail(message.reason))
            case handshake.HelloAccepted():
                raise ValueError("a welcome without proof")
            case _:
                raise ValueError(f"a greeting was expected, not {message.kind}")
        if dialer in self._dialers:
            self._dialers.remove(dialer)

    def _add_peer(self, connection: Connection, node: int, hello: Hello | None) -> None:
        del self._unidentified[connection]
        connection.set_authenticated()
        self._nodes[connection] = node
        self._peers[node] = _Peer(connection, FailureDetector(self._awake), hello)

    def _on_joined(self, node: NodeAddress, skew: Skew) -> None:
        self._events.put(PeerJoined(node.node, skew))
        self._carry_out(self._formation.on_joined(node))

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case SendMessage():
                    self.send(action.to, action.message.framed())
                case ConnectTo(node):
                    self._dialers.append(Dialer(node.node, node.address, node.port, MESH_SECONDS, self._now))
                case _:
                    self._events.put(action)
        if self._formation.ended:
            self._dialers.clear()
            self._stop_listening()

    def _stop_listening(self) -> None:
        if self._listener is not None and self._listener.fileno() >= 0:
            self._connections.unwatch(self._listener)
            self._listener.close()

    # What arrives.

    def on_frame(self, connection: Connection, data: bytes) -> None:
        if self._leaving:
            return
        if connection in self._nodes:
            self._on_message(self._nodes[connection], self._peers[self._nodes[connection]], data)
            return
        pending = self._unidentified[connection]
        if not pending.authenticator.is_challenged:
            self._on_nonce(connection, pending, data)
        elif pending.dialer is None:
            self._on_hello(connection, pending, data)
        else:
            self._on_answer(connection, pending, pending.dialer, data)

    def on_lost(self, connection: Connection, how: str) -> None:
        if connection in self._nodes:
            node = self._nodes.pop(connection)
            del self._peers[node]
            if not self._leaving:
                self._events.put(PeerGone(node, how))
                self._carry_out(self._formation.on_gone(node))
        elif (dialer := self._unidentified.pop(connection).dialer) is not None:
            dialer.on_failure(how)

    def _on_message(self, node: int, peer: _Peer, data: bytes) -> None:
        if data == _BEAT:
            peer.detector.record_heartbeat(self._awake)
            return
        message = handshake.MESSAGES.validate_json(data)
        match message:
            case handshake.Payload():
                self._events.put(PayloadReceived(node, message.body, self._now))
            case handshake.SilenceReport():
                self._on_silence_report(node, message)
            case handshake.Ack() if peer.hello is not None:
                address = NodeAddress(node=node, address=peer.connection.address, port=peer.hello.port)
                self._on_joined(address, Skew(message.skew_seconds, message.error_seconds))
            case handshake.Bye():
                self._connections.drop(peer.connection)
                del self._nodes[peer.connection], self._peers[node]
                self._events.put(PeerLeft(node))
                self._carry_out(self._formation.on_gone(node))
            case _:
                self._carry_out(self._formation.on_message(node, message))

    def _on_silence_report(self, sender: int, report: handshake.SilenceReport) -> None:
        key = (report.node, report.by, report.number)
        if key in self._silences:
            return
        self._silences.add(key)
        self._events.put(PeerReportedSilent(report.node, report.by, report.seconds))
        if report.by == sender and report.node != self._ours.node:
            self.send(report.node, report.framed())
