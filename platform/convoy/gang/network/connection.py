"""A connection to another agent. Nothing here ever waits: what cannot be sent now is kept."""

import fcntl
import os
import socket
import sys
import termios

from convoy.gang.network.framing import MOST_BYTES, MOST_UNPROVEN_BYTES, BadFrameError, Frames

MOST_KEPT_BYTES = 4 * 2**20
"""A peer that leaves so much unread is given up."""

_TCP_THIN_LINEAR_TIMEOUTS = 16
"""linux/tcp.h; Python has no name for it."""

_READ_BYTES = 65_536
_MOST_READS = 64


class LinkLostError(Exception):
    """The connection is of no more use; the text says how it ended."""


class Link:
    """Frames over a connected or connecting socket, which it owns."""

    def __init__(self, connection: socket.socket, address: str | None) -> None:
        """address: of the other end, which made the connection; None: it is being made by this one."""
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # What is lost is sent again each 0.2 s, not after 0.2, 0.4, 0.8 s: when the network was away for 0.7 s,
        # beats come before anyone is taken for lost. The kernel does so while less than four packets are on their way,
        # and never under BBR, whose slow start has no end in the kernel's eyes (`tcp_stream_is_thin`).
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_THIN_LINEAR_TIMEOUTS, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")  # in every kernel, and free to all
        self.socket = connection
        self.address = plain_address(address or "")
        self.connecting = address is None
        self._frames = Frames(MOST_UNPROVEN_BYTES)
        self._kept = bytearray()

    @property
    def wants_to_write(self) -> bool:
        """Whether it waits until the socket takes more."""
        return self.connecting or bool(self._kept)

    @property
    def untaken_bytes(self) -> int:
        """What was written and the other end's kernel has not acknowledged."""
        queued = fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4))
        return len(self._kept) + int.from_bytes(queued, sys.byteorder)

    @property
    def proven(self) -> bool:
        """The other end is of the gang. Until then its frames are short, and read one at a time."""
        return self._frames.most_bytes == MOST_BYTES

    def prove(self) -> None:
        """The other end has proven it."""
        self._frames.most_bytes = MOST_BYTES

    def connected(self) -> None:
        """To be called when a connecting socket can be written to. Raises LinkLostError if there is no connection."""
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise LinkLostError(os.strerror(code).lower())
        self.connecting = False

    def write(self, framed: bytes) -> None:
        """Send a frame, after those before it. Raises LinkLostError."""
        if len(self._kept) > MOST_KEPT_BYTES:
            raise LinkLostError(f"it has left {len(self._kept)} bytes unread")
        self._kept += framed
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes now. Raises LinkLostError."""
        if self.connecting:
            return
        while self._kept:
            try:
                del self._kept[: self.socket.send(self._kept)]
            except BlockingIOError:
                return
            except OSError as error:
                raise LinkLostError(_why(error)) from error

    def read(self) -> tuple[list[bytes], str | None]:
        """The frames that have come, and how the connection ended behind them; None: it has not."""
        found: list[bytes] = []
        for _ in range(_MOST_READS):
            if found and not self.proven:
                break  # what follows may be longer, once this frame has proven who sends it
            try:
                data = self.socket.recv(_READ_BYTES if self.proven else self._frames.lacking)
                if not data:
                    return found, "its connection was closed"
                found += self._frames.feed(data)
            except BlockingIOError:
                break
            except (OSError, BadFrameError) as error:
                return found, _why(error) if isinstance(error, OSError) else str(error)
        return found, None

    def end_writing(self) -> None:
        """The other end finds the end of the stream behind what was written. No more is written."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # there is nobody to tell

    def close(self) -> None:
        self.socket.close()


def plain_address(address: str) -> str:
    """`::ffff:10.0.0.1`, as a socket for both protocols has it, is 10.0.0.1."""
    return address.removeprefix("::ffff:")


def _why(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)
