"""An agent's part in the mesh: it greets and is greeted, beats, and judges who is silent. One thread, which never waits
for anyone in particular."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from convoy.config.errors import ConfigError
from convoy.gang.network import handshake
from convoy.gang.network.authentication import Greeting
from convoy.gang.network.connection import Link
from convoy.gang.network.connections import Links
from convoy.gang.network.dial import Call
from convoy.gang.network.failure_detector import BEAT_SECONDS, AwakeClock, Suspicion
from convoy.gang.network.formation import Dial, Formation, Send, Step
from convoy.gang.network.framing import frame
from convoy.gang.network.handshake import Hello, Member, Skew
from convoy.gang.network.listener import listen
from convoy.gang.network.peer_events import Gone, Joined, Left, PeerEvent, Said, Silent, Unheard

HELLO_SECONDS = 5.0
"""Who connects proves who it is within this."""

ANSWER_SECONDS = 30.0
"""Who took a connection answers the hello within this."""

CONNECT_SECONDS = 3.0
"""For one try to connect; then the next one follows."""

MESH_SECONDS = 30.0
"""For a node to connect to another, when all have come."""

MOST_STRANGERS = 256
"""Connections whose other end has not proven who it is. A further one takes the place of the oldest: so those who only
hold connections open keep no node out, which proves itself within a few round trips."""

_TURN_SECONDS = 0.1
_BEAT = handshake.Beat().encoded()
_BEAT_FRAME = handshake.Beat().framed()


@dataclass
class _Stranger:
    """The other end of a connection that is not known yet."""

    deadline: float
    call: Call | None
    """Which led to it; None: the other end made the connection."""
    greeting: Greeting
    sent: float = 0.0
    """Unix time of our hello."""


@dataclass
class _Peer:
    """Another node that is connected."""

    link: Link
    suspicion: Suspicion
    hello: Hello | None
    """Its own; None: this node made the connection."""
    silent: bool = False
    silences: int = 0


class Mesh:
    """Not thread-safe: one thread calls `turn` again and again."""

    def __init__(
        self,
        ours: Hello,
        token: str,
        listener: socket.socket | None,
        first: tuple[str, int] | None,
        join_seconds: float,
        events: SimpleQueue[PeerEvent],
    ) -> None:
        """ours: what this node says of itself. listener: it becomes the mesh's own; None: this node listens where it
        reaches node 0 from. first: where node 0 listens; None: this is node 0. join_seconds: for the others to come;
        or to connect to node 0.
        """
        self._ours = ours
        self._token = token
        self._listener: socket.socket | None = None
        self._events = events
        self._now = time.monotonic()
        self._clock = AwakeClock(self._now)
        self._awake = 0.0
        self._next_beat = self._now
        self._links = Links(self)
        self._strangers: dict[Link, _Stranger] = {}
        self._nodes: dict[Link, int] = {}
        self._peers: dict[int, _Peer] = {}
        self._calls: list[Call] = []
        self._silences: set[tuple[int, int, int]] = set()
        self._leaving = False
        self._formation = Formation(ours, join_seconds, self._now)
        if listener is not None:
            self._listen(listener)
        if first is not None:
            self._calls.append(Call(0, *first, join_seconds, self._now))
        self._do(self._formation.begin())

    def watch(self, ready: socket.socket, do: Callable[[], None]) -> None:
        """Call `do` in a turn in which the socket can be read."""
        self._links.watch(ready, do)

    def say(self, to: int | None, framed: bytes) -> None:
        """Send to a node, or to all; to who is not connected nothing is sent."""
        for node, peer in list(self._peers.items()):
            if to is None or node == to:
                self._links.write(peer.link, framed)

    def turn(self) -> None:
        """Wait for at most 0.1 s, and do what there is to do."""
        ready = self._links.wait(min(_TURN_SECONDS, self._next_beat - time.monotonic()))
        self._now = time.monotonic()
        self._awake = self._clock.tick(self._now)
        for do in ready:
            do()
        self._links.end_broken()
        self._beat()
        self._judge()
        self._send_away()
        self._go_on_calling()
        self._do(self._formation.tick(self._now))

    def leave(self, seconds: float) -> None:
        """Say goodbye, wait until all have it, but no longer than that, and release everything."""
        self._leaving = True
        self._stop_listening()
        for stranger in list(self._strangers):
            self._links.drop(stranger)
        self.say(None, handshake.Bye().framed())
        deadline, told = time.monotonic() + seconds, set[Link]()
        while self._links and time.monotonic() < deadline:
            for link in self._nodes.keys() - told:
                if link in self._links and not link.wants_to_write:
                    link.end_writing()
                    told.add(link)
            for do in self._links.wait(min(_TURN_SECONDS, deadline - time.monotonic())):
                do()
            self._links.end_broken()
        self.close()

    def close(self) -> None:
        """Release everything, at once."""
        self._stop_listening()
        self._links.close()

    # What is due.

    def _beat(self) -> None:
        if self._now < self._next_beat:
            return
        self._next_beat = max(self._next_beat + BEAT_SECONDS, self._now)
        for peer in list(self._peers.values()):
            # One may be on its way. More would tell nothing new, and take from the stream its thinness (see Link).
            if peer.link.untaken_bytes < 2 * len(_BEAT_FRAME):
                self._links.write(peer.link, _BEAT_FRAME)

    def _judge(self) -> None:
        for node, peer in list(self._peers.items()):
            suspect = peer.suspicion.suspect(self._awake)
            if suspect and not peer.silent:
                peer.silences += 1
                seconds, phi = peer.suspicion.quiet_seconds(self._awake), peer.suspicion.phi(self._awake)
                self._events.put(Silent(node, seconds, phi))
                told = handshake.NotHeard(node=node, by=self._ours.node, seconds=seconds, number=peer.silences)
                self.say(None, told.framed())
            peer.silent = suspect

    def _send_away(self) -> None:
        """Who has not said in time who it is."""
        for link, stranger in list(self._strangers.items()):
            if self._now < stranger.deadline:
                continue
            self._links.drop(link)
            if stranger.call is None or link.connecting:
                self.lost(link, "timed out")
                continue
            del self._strangers[link]
            took = f"{stranger.call.place} took the connection and did not answer as node {stranger.call.node}"
            self._do(self._formation.fail(None, f"{took} within {ANSWER_SECONDS:g} s"))

    def _go_on_calling(self) -> None:
        for call in list(self._calls):
            if call.late(self._now):
                who = f"node {self._ours.node} on {self._ours.hostname}"
                self._do(self._formation.fail(None, f"{who} {call.complaint}"))
            elif (connection := call.try_again(self._now)) is not None:
                link = self._links.add(connection, None)
                self._strangers[link] = _Stranger(self._now + CONNECT_SECONDS, call, Greeting(self._token, "caller"))

    # Greeting.

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # there are no more
            while True:
                connection, address = listener.accept()
                self._make_room()
                link = self._links.add(connection, address[0])
                stranger = _Stranger(self._now + HELLO_SECONDS, None, Greeting(self._token, "called"))
                self._strangers[link] = stranger
                self._links.write(link, frame(stranger.greeting.nonce))

    def _make_room(self) -> None:
        """For a further stranger."""
        came = [link for link, stranger in self._strangers.items() if stranger.call is None]
        if len(came) >= MOST_STRANGERS:
            self._links.drop(came[0])
            del self._strangers[came[0]]

    def opened(self, link: Link) -> None:
        stranger = self._strangers[link]
        stranger.deadline = self._now + ANSWER_SECONDS
        if self._listener is None and not self._formation.ended:
            self._listen_where(link)
        self._links.write(link, frame(stranger.greeting.nonce))

    def _listen_where(self, link: Link) -> None:
        """At this end's address of the connection, by which the others are told of this node."""
        try:
            listener = listen(link.socket.getsockname()[0])
        except ConfigError as error:
            self._do(self._formation.fail(None, str(error)))
            return
        self._ours = self._ours.model_copy(update={"port": listener.getsockname()[1]})
        self._listen(listener)

    def _listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._links.watch(listener, partial(self._accept, listener))

    def _be_challenged(self, link: Link, stranger: _Stranger, nonce: bytes) -> None:
        """Who was called may be said hello to."""
        stranger.greeting.challenge(nonce)
        if stranger.call is not None:
            stranger.sent = time.time()
            hello = self._ours.model_copy(update={"to": stranger.call.node, "wall": stranger.sent})
            self._links.write(link, frame(stranger.greeting.seal(hello.encoded())))

    def _welcome(self, link: Link, stranger: _Stranger, data: bytes) -> None:
        """The answer to who connected."""
        received = time.time()
        message, proven = stranger.greeting.unseal(data)
        if not proven:
            us = f"node {self._ours.node} on {self._ours.hostname}"
            self._refuse(link, stranger, f"{us} belongs to another gang: the token is not its own")
            return
        try:
            hello = handshake.read_hello(message, self._ours)
            if hello.node in self._peers:
                raise handshake.MisfitError(f"node {hello.node} on {hello.hostname} is there already")
        except handshake.MisfitError as error:
            self._refuse(link, stranger, str(error))
            self._do(self._formation.fail(None, str(error)))
            return
        self._settle(link, hello.node, hello)
        ours = self._ours
        welcome = handshake.Welcome(node=ours.node, hostname=ours.hostname, received=received, wall=time.time())
        self._links.write(link, frame(stranger.greeting.seal(welcome.encoded())))

    def _refuse(self, link: Link, stranger: _Stranger, reason: str) -> None:
        self._links.write(link, frame(stranger.greeting.seal(handshake.Refused(reason=reason).encoded())))
        link.end_writing()
        self._links.drop(link)
        del self._strangers[link]

    def _be_welcomed(self, link: Link, stranger: _Stranger, call: Call, data: bytes) -> None:
        """The answer of who was called."""
        answer, proven = stranger.greeting.unseal(data)
        message = handshake.MESSAGES.validate_json(answer)
        match message:
            case handshake.Welcome() if proven and message.node == call.node:
                skew = handshake.skew(stranger.sent, message.received, message.wall, time.time())
                self._settle(link, call.node, None)
                here = handshake.Here(skew_seconds=-skew.seconds, error_seconds=skew.error_seconds)
                self._links.write(link, here.framed())
                member = Member(node=call.node, hostname=message.hostname, address=call.host, port=call.port)
                self._join(member, skew)
            case handshake.Refused():  # without proof too: who belongs to another gang has none
                self._do(self._formation.fail(None, message.reason))
            case handshake.Welcome():
                raise ValueError("a welcome without proof")
            case _:
                raise ValueError(f"a greeting was expected, not {message.kind}")
        if call in self._calls:
            self._calls.remove(call)

    def _settle(self, link: Link, node: int, hello: Hello | None) -> None:
        del self._strangers[link]
        link.prove()
        self._nodes[link] = node
        self._peers[node] = _Peer(link, Suspicion(self._awake), hello)

    def _join(self, member: Member, skew: Skew) -> None:
        self._events.put(Joined(member.node, member.hostname, skew))
        self._do(self._formation.joined(member))

    def _do(self, steps: Iterable[Step]) -> None:
        for step in steps:
            match step:
                case Send():
                    self.say(step.to, step.message.framed())
                case Dial():
                    there = step.member
                    self._calls.append(Call(there.node, there.address, there.port, MESH_SECONDS, self._now))
                case _:
                    self._events.put(step)
        if self._formation.ended:
            self._calls.clear()
            self._stop_listening()

    def _stop_listening(self) -> None:
        if self._listener is not None and self._listener.fileno() >= 0:
            self._links.unwatch(self._listener)
            self._listener.close()

    # What comes.

    def took(self, link: Link, data: bytes) -> None:
        if self._leaving:
            return
        if link in self._nodes:
            self._hear(self._nodes[link], self._peers[self._nodes[link]], data)
            return
        stranger = self._strangers[link]
        if not stranger.greeting.challenged:
            self._be_challenged(link, stranger, data)
        elif stranger.call is None:
            self._welcome(link, stranger, data)
        else:
            self._be_welcomed(link, stranger, stranger.call, data)

    def lost(self, link: Link, how: str) -> None:
        if link in self._nodes:
            node = self._nodes.pop(link)
            del self._peers[node]
            if not self._leaving:
                self._events.put(Gone(node, how))
                self._do(self._formation.gone(node))
        elif (call := self._strangers.pop(link).call) is not None:
            call.failed(how)

    def _hear(self, node: int, peer: _Peer, data: bytes) -> None:
        if data == _BEAT:
            peer.suspicion.heard(self._awake)
            return
        message = handshake.MESSAGES.validate_json(data)
        match message:
            case handshake.Told():
                self._events.put(Said(node, message.body, self._now))
            case handshake.NotHeard():
                self._pass_on(node, message)
            case handshake.Here() if peer.hello is not None:
                hello = peer.hello
                member = Member(node=node, hostname=hello.hostname, address=peer.link.address, port=hello.port)
                self._join(member, Skew(message.skew_seconds, message.error_seconds))
            case handshake.Bye():
                self._links.drop(peer.link)
                del self._nodes[peer.link], self._peers[node]
                self._events.put(Left(node))
                self._do(self._formation.gone(node))
            case _:
                self._do(self._formation.received(node, message))

    def _pass_on(self, sender: int, silence: handshake.NotHeard) -> None:
        key = (silence.node, silence.by, silence.number)
        if key in self._silences:
            return
        self._silences.add(key)
        self._events.put(Unheard(silence.node, silence.by, silence.seconds))
        if silence.by == sender and silence.node != self._ours.node:
            self.say(silence.node, silence.framed())
