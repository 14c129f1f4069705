"""Where an agent listens: at the address that the other nodes are told, and at no other."""

import errno
import os
import socket

from convoy.config.errors import ConfigError

_BACKLOG = 1024


def listen(host: str, port: int = 0) -> socket.socket:
    """Listen at this address, on any free port or on this one. Raises ConfigError if the port cannot be had.

    An address that no interface of this machine has, such as that of a router in front of it, leaves no choice but to
    listen on all: see `on_all_addresses`.
    """
    try:
        return _at(host, port) or _everywhere(port)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "another process listens on it" if taken else os.strerror(error.errno or 0).lower()
        raise ConfigError(f"port {port} on {socket.gethostname()}: must be free, but {why}") from error


def on_all_addresses(listener: socket.socket) -> bool:
    """Whether it is reached at every address of this machine."""
    return listener.getsockname()[0] in ("0.0.0.0", "::")


def _at(host: str, port: int) -> socket.socket | None:
    """None: this machine has no such address."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:  # a name that is known elsewhere only
        return None
    for family, _, _, _, address in found:
        try:
            return socket.create_server(address, family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return None


def _everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=_BACKLOG)
