"""Listening at the address that the other nodes connect to, and connecting to a node that may not be up yet."""

import errno
import os
import socket

RETRY_SECONDS = 0.2

_BACKLOG = 1024


def listen(host: str) -> socket.socket:
    """Listen at this address, on any free port. Raises OSError.

    An address that no interface of this machine has, such as that of a router in front of it, or a name that resolves
    only elsewhere, leaves no choice but to listen on all addresses: see `is_on_all_addresses`.
    """
    try:
        candidates = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        candidates = []
    for family, _, _, _, address in candidates:
        try:
            return socket.create_server(address, family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=_BACKLOG, dualstack_ipv6=both)


def is_on_all_addresses(listener: socket.socket) -> bool:
    """Whether it can be reached at every address of this machine."""
    return listener.getsockname()[0] in ("0.0.0.0", "::")


class Dialer:
    """Tries to connect to a node again and again, until it answers or the deadline passes."""

    def __init__(self, node: int, host: str, port: int, seconds: float, now: float) -> None:
        """host: name or address. seconds: from now; no attempt begins after that."""
        self.node, self.host, self.port = node, host, port
        self.place = f"{host}:{port}"
        self._seconds = seconds
        self._deadline = now + seconds
        self._error = "no answer"
        self._attempts = 0
        self._retry_at = now
        self._under_way = False

    @property
    def failure_text(self) -> str:
        """One line: it did not connect, and why the last attempt failed."""
        return f"cannot connect to node {self.node} at {self.place} within {self._seconds:g} s: {self._error}"

    def is_late(self, now: float) -> bool:
        """Whether the deadline has passed without a connection."""
        return not self._under_way and now >= self._deadline

    def try_connect(self, now: float) -> socket.socket | None:
        """A connecting socket, if it is time for another attempt. Waits for nothing but the name's resolution."""
        if self._under_way or now < self._retry_at:
            return None
        self._attempts += 1
        self._retry_at = now + RETRY_SECONDS
        try:
            candidates = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:  # a name may resolve only after its host has started
            self._error = f"{self.host}: {error.strerror or error}"
            return None
        family, kind, protocol, _, address = candidates[self._attempts % len(candidates)]
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        code = connection.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            self._error = os.strerror(code).lower()
            return None
        self._under_way = True
        return connection

    def on_failure(self, how: str) -> None:
        """The attempt failed."""
        self._under_way = False
        self._error = how
