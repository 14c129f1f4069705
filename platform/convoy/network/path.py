"""The path to another host: round-trip time and path MTU. IPv4.

Like tracepath, it sends UDP packets that may not be fragmented to a port at which nobody listens. The peer's kernel
answers each with an ICMP message, and a router on the way with the MTU of its next link. A switch that drops frames
which are too large for a port answers nothing: then smaller sizes are tried.
"""

import contextlib
import errno
import os
import select
import socket
import struct
import time
from dataclasses import dataclass

from convoy.config.errors import ConfigError
from convoy.network.interfaces import interface_with

PORT = 33434
"""UDP port of the probes: the first that traceroute uses, at which nobody listens."""

HEADERS = 28
"""Bytes of the IPv4 and UDP headers."""

ANSWER_SECONDS = 0.25
"""Longest wait for one answer."""

SMALL = 576
"""Every host takes packets of this size. Source: RFC 791."""

USUAL = (8500, 4500, 1500, 1450, 1400, 1280)
"""MTUs that are tried if larger packets disappear. A kernel sends six ICMP errors to a host at once, then one per
second: source: icmp(7), `icmp_ratelimit`."""

_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE, _IP_RECVERR = 10, 3, 11
"""Constants of Linux's in.h that the module socket lacks."""


@dataclass(frozen=True)
class Path:
    """Properties of the path to a host."""

    interface: str | None
    """Interface by which packets to the host leave this one."""
    round_trip_seconds: float | None
    """The shortest round-trip time; None: the peer does not answer."""
    mtu: int | None
    """Bytes of the largest packet that arrived; None: the peer does not answer."""


def resolve(peer: str) -> str:
    """The IPv4 address of a host. Raises ConfigError if it has none."""
    try:
        if not peer.strip():
            raise UnicodeError
        return socket.gethostbyname(peer)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name of a host"
        raise ConfigError(f"--peer {peer}: must be a host with an IPv4 address: {reason}") from None


def examine_path(address: str, local_mtu: int) -> Path:
    """Probe the path to an IPv4 address with packets of up to local_mtu bytes, the MTU of the interface.

    Takes at most four seconds. Raises ConfigError if there is no route to the address.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
            probe.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
            probe.connect((address, PORT))
            interface = interface_with(probe.getsockname()[0])
            first = _answer(probe, SMALL)
            if first is None:
                return Path(interface, None, None)
            again = _answer(probe, SMALL)
            fastest = min(first.seconds, again.seconds if again else first.seconds)
            return Path(interface, fastest, _largest(probe, local_mtu))
    except OSError as error:
        raise ConfigError(f"--peer {address}: cannot be reached: {error.strerror}") from None


def _largest(probe: socket.socket, local_mtu: int) -> int:
    """Path MTU in bytes; among the usual sizes if no router names it."""
    size = min(local_mtu, 65535)
    tried = 0
    while size > SMALL and tried < 2:  # each router on the way may have a smaller one
        answer = _answer(probe, size)
        if answer is None:
            break
        if answer.mtu is None:
            return size
        size, tried = min(answer.mtu, size - 1), tried + 1
    for smaller in USUAL:
        if smaller < size and _answer(probe, smaller) is not None:
            return smaller
    return SMALL


@dataclass(frozen=True)
class _Answer:
    seconds: float
    mtu: int | None
    """MTU of the next link in bytes, from a router that could not forward the packet; None: the packet arrived."""


def _answer(probe: socket.socket, size: int) -> _Answer | None:
    """The answer to a packet of `size` bytes, in two attempts; None: there is none."""
    for _ in range(2):
        began = time.perf_counter()
        try:
            probe.send(bytes(size - HEADERS))
        except ConnectionRefusedError:  # a pending answer to an earlier packet
            pass
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            with contextlib.suppress(BlockingIOError):  # more than the interface by which it leaves takes
                return _Answer(time.perf_counter() - began, _next_mtu(probe))
            return None
        waiting = select.poll()
        waiting.register(probe, select.POLLERR)
        if waiting.poll(ANSWER_SECONDS * 1000):
            seconds = time.perf_counter() - began
            return _Answer(seconds, _next_mtu(probe))
    return None


def _next_mtu(probe: socket.socket) -> int | None:
    """Take the answer from the error queue (struct sock_extended_err of linux/errqueue.h); returns the MTU it names."""
    _, control, _, _ = probe.recvmsg(1, 512, socket.MSG_ERRQUEUE)
    probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    for level, kind, data in control:
        if (level, kind) == (socket.IPPROTO_IP, _IP_RECVERR):
            code, _, _, _, _, info, _ = struct.unpack_from("=IBBBBII", data)
            if code == errno.EMSGSIZE:
                return int(info)
            if code != errno.ECONNREFUSED:  # from a router that knows no way, or this host's ARP
                raise OSError(code, os.strerror(code))
    return None
