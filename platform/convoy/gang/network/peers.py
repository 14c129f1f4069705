"""The agents of a gang: which are connected, which are no longer heard, and the messages between them.

Every agent is connected to every other over TCP and sends it a beat every 0.2 s. A killed agent is noticed by its
closed connection, a frozen or isolated one by its silence (`failure_detector.py`).
"""

import socket
import threading
import time
import traceback
from collections import deque
from queue import SimpleQueue
from typing import Any

from convoy.gang.network import handshake
from convoy.gang.network.formation import PeerEvent, PeersFailed
from convoy.gang.network.mesh import Mesh

CONNECT_SECONDS = 60.0
"""For a node to connect to node 0, which listens before anyone knows its address."""

LEAVE_SECONDS = 0.5
"""For a goodbye to be received. A frozen peer does not receive it."""


class Peers:
    """One agent's connections to all others, in a thread of their own, which reports what it learns as `events`."""

    events: SimpleQueue[PeerEvent]
    """A PeerJoined for each other node and then GangFormed, or PeersFailed at any time before; then events as they
    occur."""

    @classmethod
    def lead(cls, listener: socket.socket, token: str, *, nodes: int, nproc: int, join_seconds: float) -> "Peers":
        """Node 0. listener: others connect to it; it is closed when they have. join_seconds: for all to join."""
        return cls(_hello(0, nodes, nproc, listener.getsockname()[1]), token, listener, None, join_seconds)

    @classmethod
    def join(
        cls,
        address: tuple[str, int],
        token: str,
        *,
        node: int,
        nodes: int,
        nproc: int,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> "Peers":
        """Any other node. address: where node 0 listens. A failure is reported as PeersFailed, and never raised."""
        return cls(_hello(node, nodes, nproc, 0), token, None, address, connect_seconds)

    def __init__(
        self,
        ours: handshake.Hello,
        token: str,
        listener: socket.socket | None,
        first: tuple[str, int] | None,
        seconds: float,
    ) -> None:
        """See `lead` and `join`."""
        self.events = SimpleQueue()
        self._outbox: deque[tuple[int | None, bytes]] = deque()
        self._closing = threading.Event()
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)
        self._mesh = Mesh(ours, token, listener, first, seconds, self.events)
        self._mesh.watch(self._woken, self._clear_wakes)
        self._thread = threading.Thread(target=self._run_mesh, name="peers", daemon=True)
        self._thread.start()

    def send(self, to: int | None, body: dict[str, Any]) -> None:
        """Send what JSON can hold to a node's agent, or to all others (None). Never waits; messages to one node
        arrive in order. Nothing is sent to a node that is not connected: before GangFormed, that may be any but node 0.
        Raises ValueError if it is longer than 1 MiB.
        """
        self._outbox.append((to, handshake.Payload(body=body).framed()))
        self._wake_thread()

    def leave(self) -> None:
        """Say goodbye, so that no peer considers this node lost. Takes LEAVE_SECONDS at most. No event follows."""
        self._closing.set()
        self._wake_thread()
        self._thread.join(2 * LEAVE_SECONDS)

    def __enter__(self) -> "Peers":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def _wake_thread(self) -> None:
        try:
            self._wake.send(b"\0")
        except OSError:
            return  # the thread is awake already, or has ended

    def _clear_wakes(self) -> None:
        try:
            while self._woken.recv(4096):
                pass
        except BlockingIOError:
            return

    def _run_mesh(self) -> None:
        try:
            while not self._closing.is_set():
                self._mesh.run_turn()
                self._send_outbox()
            self._send_outbox()
            self._mesh.leave(LEAVE_SECONDS)
        except Exception:  # a bug: this node no longer sees the others, and must not continue as if it did
            self._mesh.close()
            if not self._closing.is_set():
                self.events.put(PeersFailed(f"the thread of the peers failed:\n{traceback.format_exc()}"))
        finally:
            self._wake.close()
            self._woken.close()

    def _send_outbox(self) -> None:
        while self._outbox:
            self._mesh.send(*self._outbox.popleft())


def _hello(node: int, nodes: int, nproc: int, port: int) -> handshake.Hello:
    return handshake.Hello(
        node=node, nodes=nodes, nproc=nproc, hostname=socket.gethostname(), port=port, wall=time.time()
    )
