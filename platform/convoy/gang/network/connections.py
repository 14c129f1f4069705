"""All connections of an agent, served by one thread that waits for none of them in particular."""

import selectors
import socket
from collections.abc import Callable
from functools import partial
from typing import Protocol

from convoy.gang.network.connection import Link, LinkLostError


class User(Protocol):
    """Who the connections are for."""

    def opened(self, link: Link) -> None:
        """A connection that this node made is there."""

    def took(self, link: Link, data: bytes) -> None:
        """A frame came. Raises ValueError for one that no agent sends, which ends the connection."""

    def lost(self, link: Link, how: str) -> None:
        """A connection has ended, and not by `drop`. It is dropped already."""


class Links:
    """Not thread-safe. What the user is told, it is told inside of `serve`."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._open: dict[Link, str | None] = {}  # why nothing can be sent any more, where that is so
        self._selector = selectors.DefaultSelector()

    def __contains__(self, link: Link) -> bool:
        return link in self._open

    def __bool__(self) -> bool:
        return bool(self._open)

    def watch(self, ready: socket.socket, do: Callable[[], None]) -> None:
        """Call `do` when a socket, which is no link, can be read."""
        self._selector.register(ready, selectors.EVENT_READ, lambda _: do())

    def unwatch(self, ready: socket.socket) -> None:
        """The opposite of `watch`."""
        self._selector.unregister(ready)

    def wait(self, seconds: float) -> list[Callable[[], None]]:
        """Wait until something can be read or written; what is to be called then."""
        return [partial(key.data, mask) for key, mask in self._selector.select(max(0.0, seconds))]

    def add(self, connection: socket.socket, address: str | None) -> Link:
        """Serve this connection too, and own it. address: see Link."""
        link = Link(connection, address)
        self._open[link] = None
        self._selector.register(connection, _interest(link), partial(self._serve, link))
        return link

    def write(self, link: Link, framed: bytes) -> None:
        """Send a frame. If that fails, what the other end sent before is still taken, and then it is lost."""
        if self._open.get(link, "dropped") is not None:
            return
        try:
            link.write(framed)
        except LinkLostError as error:
            self._open[link] = str(error)
        self._attend(link)

    def drop(self, link: Link) -> None:
        """Close the connection."""
        if link in self._open:
            del self._open[link]
            self._selector.unregister(link.socket)
            link.close()

    def end_broken(self) -> None:
        """Tell of those lost to which nothing can be sent."""
        for link, why in list(self._open.items()):
            if why is not None:
                self._read(link, why)

    def close(self) -> None:
        """Drop all, and watch nothing any more."""
        for link in list(self._open):
            self.drop(link)
        self._selector.close()

    def _serve(self, link: Link, mask: int) -> None:
        if link not in self._open:
            return
        try:
            if link.connecting:
                link.connected()
                self._user.opened(link)
            elif mask & selectors.EVENT_WRITE:
                link.flush()
        except LinkLostError as error:
            self._open[link] = str(error)
            return
        self._attend(link)
        if mask & selectors.EVENT_READ:
            self._read(link)

    def _read(self, link: Link, broken: str | None = None) -> None:
        frames, ended = link.read()
        ended = broken or ended
        for data in frames:
            try:
                self._user.took(link, data)
            except ValueError as error:
                ended = f"it sent what no agent sends: {' '.join(str(error).split())[:200]}"
                break
            if link not in self._open:
                return
        if ended is not None:
            self._lose(link, ended)

    def _lose(self, link: Link, how: str) -> None:
        if link in self._open:
            self.drop(link)
            self._user.lost(link, how)

    def _attend(self, link: Link) -> None:
        """Have the selector watch for what the link waits for."""
        if link in self._open:
            key = self._selector.get_key(link.socket)
            if key.events != _interest(link):
                self._selector.modify(link.socket, _interest(link), key.data)


def _interest(link: Link) -> int:
    if link.connecting:
        return selectors.EVENT_WRITE
    return selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_to_write else 0)
