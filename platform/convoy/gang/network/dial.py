"""Reaching a node that may not be reachable yet."""

import errno
import os
import socket

RETRY_SECONDS = 0.2


class Call:
    """Tries to connect to a node, one after the other, until one of them is answered or it is too late."""

    def __init__(self, node: int, host: str, port: int, seconds: float, now: float) -> None:
        """host: name or address. seconds: from now; no try begins after that."""
        self.node = node
        self.host = host
        self.port = port
        self.place = f"{host}:{port}"
        self._seconds = seconds
        self._deadline = now + seconds
        self._error = "no answer"
        self._tries = 0
        self._retry_at = now
        self._under_way = False

    @property
    def complaint(self) -> str:
        """That it was in vain, and what the last try met."""
        return f"cannot connect to node {self.node} at {self.place} within {self._seconds:g} s: {self._error}"

    def late(self, now: float) -> bool:
        """Whether it was in vain."""
        return not self._under_way and now >= self._deadline

    def try_again(self, now: float) -> socket.socket | None:
        """A socket that is connecting, if it is time for another try. Waits for nothing but the name's resolution."""
        if self._under_way or now < self._retry_at:
            return None
        self._tries += 1
        self._retry_at = now + RETRY_SECONDS
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:  # a name may be known later than its host runs
            self._error = f"{self.host}: {error.strerror or error}"
            return None
        family, kind, protocol, _, address = found[self._tries % len(found)]
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        code = connection.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            self._error = os.strerror(code).lower()
            return None
        self._under_way = True
        return connection

    def failed(self, how: str) -> None:
        """The try came to nothing."""
        self._under_way = False
        self._error = how
