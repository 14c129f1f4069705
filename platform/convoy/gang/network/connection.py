"""Connections to other agents: frames on sockets, all served by one thread that never waits for any one of them.

A frame is a length of four bytes, big-endian, followed by that many bytes. What cannot be sent now is buffered.
"""

import fcntl
import os
import selectors
import socket
import struct
import sys
import termios
from collections.abc import Callable
from functools import partial
from typing import Protocol

MAX_BYTES = 2**20
"""Limit of one frame. Messages between agents are small; a larger length does not come from an agent."""

MAX_UNPROVEN_BYTES = 4096
"""The same for an end that has not yet proven that it belongs to the gang."""

MAX_UNSENT_BYTES = 4 * 2**20
"""A peer that leaves this much unread is given up."""

_LENGTH = struct.Struct("!I")

_TCP_THIN_LINEAR_TIMEOUTS = 16
"""linux/tcp.h; Python has no name for it."""

_READ_BYTES = 65_536
_MAX_READS = 64


class BadFrameError(Exception):
    """The bytes that arrived are not a frame of ours."""


class ConnectionLostError(Exception):
    """The connection can no longer be used; the text says how it ended."""


def frame(data: bytes) -> bytes:
    """The frame that holds `data`. Raises ValueError if it is longer than MAX_BYTES."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data)} bytes: must be at most {MAX_BYTES}")
    return _LENGTH.pack(len(data)) + data


class FrameReader:
    """Splits a stream into frames, in whatever pieces it arrives."""

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        """most_bytes: limit of one frame; it may change between two calls."""
        self.most_bytes = most_bytes
        self._rest = bytearray()

    @property
    def missing_bytes(self) -> int:
        """Bytes still to come, as far as is known, until the next frame is complete."""
        if len(self._rest) < _LENGTH.size:
            return _LENGTH.size - len(self._rest)
        (length,) = _LENGTH.unpack_from(self._rest)
        return _LENGTH.size + int(length) - len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The contents of the frames that are now complete. Raises BadFrameError."""
        self._rest += data
        frames, start = [], 0
        while len(self._rest) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest, start)
            if length > self.most_bytes:
                raise BadFrameError(f"a frame of {length} bytes: must be at most {self.most_bytes}")
            end = start + _LENGTH.size + length
            if len(self._rest) < end:
                break
            frames.append(bytes(self._rest[start + _LENGTH.size : end]))
            start = end
        del self._rest[:start]
        return frames


class Connection:
    """Frames over a connected or connecting socket, which it owns."""

    def __init__(self, connection: socket.socket, address: str | None) -> None:
        """address: of the other end, which opened the connection; None: this end is opening it."""
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Lost packets are sent again every 0.2 s, not after 0.2, 0.4, 0.8 s: when the network was away for 0.7 s,
        # beats arrive before any peer is considered lost. The kernel does so while fewer than four packets are in
        # flight, and never under BBR, whose slow start never ends for the kernel (`tcp_stream_is_thin`).
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_THIN_LINEAR_TIMEOUTS, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")  # in every kernel, needs no privilege
        self.socket = connection
        self.address = plain_address(address or "")
        self.connecting = address is None
        self._frames = FrameReader(MAX_UNPROVEN_BYTES)
        self._unsent = bytearray()

    @property
    def wants_to_write(self) -> bool:
        """Whether it waits for the socket to accept more."""
        return self.connecting or bool(self._unsent)

    @property
    def unacknowledged_bytes(self) -> int:
        """What was written and the other end's kernel has not acknowledged."""
        queued = fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4))
        return len(self._unsent) + int.from_bytes(queued, sys.byteorder)

    @property
    def is_authenticated(self) -> bool:
        """The other end belongs to the gang. Until then its frames are short, and are read one at a time."""
        return self._frames.most_bytes == MAX_BYTES

    def set_authenticated(self) -> None:
        self._frames.most_bytes = MAX_BYTES

    def complete_connect(self) -> None:
        """Call when a connecting socket becomes writable. Raises ConnectionLostError if it did not connect."""
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise ConnectionLostError(os.strerror(code).lower())
        self.connecting = False

    def write(self, framed: bytes) -> None:
        """Send a frame after those before it. Raises ConnectionLostError."""
        if len(self._unsent) > MAX_UNSENT_BYTES:
            raise ConnectionLostError(f"it has left {len(self._unsent)} bytes unread")
        self._unsent += framed
        self.flush()

    def flush(self) -> None:
        """Send what the socket accepts now. Raises ConnectionLostError."""
        if self.connecting:
            return
        while self._unsent:
            try:
                del self._unsent[: self.socket.send(self._unsent)]
            except BlockingIOError:
                return
            except OSError as error:
                raise ConnectionLostError(_error_text(error)) from error

    def read(self) -> tuple[list[bytes], str | None]:
        """The frames that have arrived, and how the connection ended after them; None: it has not ended."""
        frames: list[bytes] = []
        for _ in range(_MAX_READS):
            if frames and not self.is_authenticated:
                break  # the next frame may be longer, once this one has proven who sends it
            try:
                data = self.socket.recv(_READ_BYTES if self.is_authenticated else self._frames.missing_bytes)
                if not data:
                    return frames, "its connection was closed"
                frames += self._frames.feed(data)
            except BlockingIOError:
                break
            except (OSError, BadFrameError) as error:
                return frames, _error_text(error) if isinstance(error, OSError) else str(error)
        return frames, None

    def end_writing(self) -> None:
        """Let the other end find the end of the stream after what was written. Nothing more is written."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the other end is gone

    def close(self) -> None:
        self.socket.close()


class ConnectionHandler(Protocol):
    """Whoever the connections are served for."""

    def on_dialed(self, connection: Connection) -> None:
        """A connection that this node was opening is established."""

    def on_frame(self, connection: Connection, data: bytes) -> None:
        """A frame arrived. Raises ValueError for one that no agent sends, which ends the connection."""

    def on_lost(self, connection: Connection, how: str) -> None:
        """A connection has ended other than by `drop`, and is already dropped."""


class Connections:
    """All connections of an agent. Not thread-safe; the handler is called from within `serve` alone."""

    def __init__(self, handler: ConnectionHandler) -> None:
        self._handler = handler
        self._open: dict[Connection, str | None] = {}  # why nothing can be sent any more, where that is so
        self._selector = selectors.DefaultSelector()

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._open

    def __bool__(self) -> bool:
        return bool(self._open)

    def watch(self, socket_: socket.socket, on_readable: Callable[[], None]) -> None:
        """Call `on_readable` when a socket that is not one of the connections can be read."""
        self._selector.register(socket_, selectors.EVENT_READ, lambda _: on_readable())

    def unwatch(self, socket_: socket.socket) -> None:
        self._selector.unregister(socket_)

    def serve(self, seconds: float, after_wait: Callable[[], None] = lambda: None) -> None:
        """Wait until something can be read or written, for at most `seconds`, and do it. after_wait: called first."""
        ready = self._selector.select(max(0.0, seconds))
        after_wait()
        for key, mask in ready:
            key.data(mask)
        for connection, why in list(self._open.items()):
            if why is not None:
                self._read(connection, why)

    def add(self, socket_: socket.socket, address: str | None) -> Connection:
        """Own this connection and serve it too. address: see Connection."""
        connection = Connection(socket_, address)
        self._open[connection] = None
        self._selector.register(socket_, _interest(connection), partial(self._serve_ready, connection))
        return connection

    def write(self, connection: Connection, framed: bytes) -> None:
        """Send a frame. If that fails, what the other end sent before is still read, and then the connection is
        lost."""
        if self._open.get(connection, "dropped") is not None:
            return
        try:
            connection.write(framed)
        except ConnectionLostError as error:
            self._open[connection] = str(error)
        self._update_interest(connection)

    def drop(self, connection: Connection) -> None:
        """Close the connection without a call of the handler."""
        if connection in self._open:
            del self._open[connection]
            self._selector.unregister(connection.socket)
            connection.close()

    def close(self) -> None:
        """Drop all, and watch nothing any more."""
        for connection in list(self._open):
            self.drop(connection)
        self._selector.close()

    def _serve_ready(self, connection: Connection, mask: int) -> None:
        if connection not in self._open:
            return
        try:
            if connection.connecting:
                connection.complete_connect()
                self._handler.on_dialed(connection)
            elif mask & selectors.EVENT_WRITE:
                connection.flush()
        except ConnectionLostError as error:
            self._open[connection] = str(error)
            return
        self._update_interest(connection)
        if mask & selectors.EVENT_READ:
            self._read(connection)

    def _read(self, connection: Connection, write_error: str | None = None) -> None:
        frames, ended = connection.read()
        ended = write_error or ended
        for data in frames:
            try:
                self._handler.on_frame(connection, data)
            except ValueError as error:
                ended = f"it sent what no agent sends: {' '.join(str(error).split())[:200]}"
                break
            if connection not in self._open:
                return
        if ended is not None and connection in self._open:
            self.drop(connection)
            self._handler.on_lost(connection, ended)

    def _update_interest(self, connection: Connection) -> None:
        if connection in self._open:
            key = self._selector.get_key(connection.socket)
            if key.events != _interest(connection):
                self._selector.modify(connection.socket, _interest(connection), key.data)


def plain_address(address: str) -> str:
    """10.0.0.1 for `::ffff:10.0.0.1`, the form that a dual-stack socket reports."""
    return address.removeprefix("::ffff:")


def _interest(connection: Connection) -> int:
    if connection.connecting:
        return selectors.EVENT_WRITE
    return selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_to_write else 0)


def _error_text(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)
