"""This host's network interfaces with an IPv4 address, as the kernel reports them. Source: netdevice(7)."""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

_FLAGS, _ADDRESS, _MASK = 0x8913, 0x8915, 0x891B  # SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFNETMASK
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40


class Interface(NamedTuple):
    """A network interface of a host, with an IPv4 address."""

    name: str
    address: str
    network: str
    """The network of the address, such as `10.0.1.0/24`."""


def ipv4_interfaces() -> list[Interface]:
    """The interfaces that are up and have an IPv4 address, without the loopback, sorted by name."""
    found = []
    for name, (flags, address, mask) in _answers(_FLAGS, _ADDRESS, _MASK):
        (state,) = struct.unpack_from("H", flags, 16)
        if state & _UP and state & _RUNNING and not state & _LOOPBACK:
            network = ipaddress.ip_network(f"{_ipv4(address)}/{_ipv4(mask)}", strict=False)
            found.append(Interface(name, _ipv4(address), str(network)))
    return sorted(found)


def interface_with(address: str) -> str | None:
    """Name of the interface that has this IPv4 address, the loopback included; None: no interface has it."""
    return next((name for name, (own,) in _answers(_ADDRESS) if _ipv4(own) == address), None)


def _answers(*requests: int) -> Iterator[tuple[str, list[bytes]]]:
    """Name of each interface that has an IPv4 address, with the kernel's answer (struct ifreq) to each request."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            ifreq = struct.pack("256s", name.encode())
            try:
                answers = [fcntl.ioctl(any_socket, request, ifreq) for request in requests]
            except OSError:  # it has no address
                continue
            yield name, answers


def _ipv4(answer: bytes) -> str:
    return socket.inet_ntoa(answer[20:24])
