"""Links that hold each frame for a while: this kernel's traffic control has no delay. Linux only; needs root.

A link is two TAP devices, one in a host's namespace and one in the switch's. What the host sends is held; what comes
back passes at once, since the sender's own link has held it.
"""

import collections
import ctypes
import fcntl
import os
import select
import struct
import threading
import time
from typing import NamedTuple, Self

from convoy.drills.testbed.mounts import run_command

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_FRAME_BYTES = 2**16
_LIBC = ctypes.CDLL(None, use_errno=True)


class RelayCounts(NamedTuple):
    """Frames of one link."""

    held: int
    """That the host sent, and that were delivered after the delay."""
    passed: int
    """That came for the host."""
    lost: int
    """That a full device did not take."""


def open_tap(namespace: str, name: str, mtu: int) -> int:
    """A TAP device in a network namespace, up; returns its file descriptor. It is gone when that is closed.

    Raises OSError.
    """
    descriptors: list[int | OSError] = []

    def create() -> None:  # in a thread, since a namespace is entered by a thread
        try:
            descriptors.append(_create_in(namespace, name))
        except OSError as error:
            descriptors.append(error)

    thread = threading.Thread(target=create)
    thread.start()
    thread.join()
    (made,) = descriptors
    if isinstance(made, OSError):
        raise made
    run_command("ip", "-n", namespace, "link", "set", name, "mtu", str(mtu), "up")
    return made


def _create_in(namespace: str, name: str) -> int:
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if _LIBC.setns(there, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {namespace}")
    finally:
        os.close(there)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    except OSError:
        os.close(tap)
        raise
    return tap


class _Link:
    """Two devices, and the frames that are held between them."""

    def __init__(self, host: int, switch: int) -> None:
        self.host, self.switch = host, switch
        self.waiting: collections.deque[tuple[float, bytes]] = collections.deque()
        self.held = self.passed = self.lost = 0


class Relay:
    """Links with a delay, served by one thread while in use."""

    def __init__(self, delay_seconds: float) -> None:
        self._delay = delay_seconds
        self._links: list[_Link] = []
        self._wake, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="relay", daemon=True)

    def add_link(self, host: int, switch: int) -> None:
        """A link between two TAP devices, which are closed with the relay; before it is in use."""
        os.set_blocking(host, False)
        self._links.append(_Link(host, switch))

    def counts(self) -> list[RelayCounts]:
        """Of each link, in the order in which they were added."""
        return [RelayCounts(link.held, link.passed, link.lost) for link in self._links]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._stop, b"x")
        self._thread.join()
        for descriptor in (self._wake, self._stop, *(fd for link in self._links for fd in (link.host, link.switch))):
            os.close(descriptor)

    def _serve(self) -> None:
        poll = select.epoll()
        of = {link.host: (link, True) for link in self._links} | {link.switch: (link, False) for link in self._links}
        for descriptor in (self._wake, *of):
            poll.register(descriptor, select.EPOLLIN)
        while True:
            due = min((link.waiting[0][0] for link in self._links if link.waiting), default=None)
            timeout = -1.0 if due is None else max(0.0, due - time.monotonic())
            for descriptor, _ in poll.poll(timeout):
                if descriptor == self._wake:
                    poll.close()
                    return
                link, from_host = of[descriptor]
                (self._hold if from_host else _pass_on)(link)
            for link in self._links:
                _deliver(link)

    def _hold(self, link: _Link) -> None:
        """Take all that the host has sent."""
        release = time.monotonic() + self._delay
        while (frame := _read_frame(link.host)) is not None:
            link.waiting.append((release, frame))


def _pass_on(link: _Link) -> None:
    while (frame := _read_frame(link.switch)) is not None:
        link.passed += _write_frame(link.host, frame, link)


def _deliver(link: _Link) -> None:
    """All frames whose time has come."""
    now = time.monotonic()
    while link.waiting and link.waiting[0][0] <= now:
        link.held += _write_frame(link.switch, link.waiting.popleft()[1], link)


def _read_frame(descriptor: int) -> bytes | None:
    try:
        return os.read(descriptor, _FRAME_BYTES)
    except BlockingIOError:
        return None
    except OSError:  # its namespace is gone
        return None


def _write_frame(descriptor: int, frame: bytes, link: _Link) -> int:
    """1 if it was taken, else 0."""
    try:
        os.write(descriptor, frame)
    except OSError:
        link.lost += 1
        return 0
    return 1
