"""Traffic counters of a host's network interfaces and RDMA adapters, and their growth between two readings."""

import re
from collections.abc import Mapping
from pathlib import Path

from convoy.config.base import FrozenConfig

PROC, SYSFS = Path("/proc"), Path("/sys")

LOOPBACK = "lo"

Counts = dict[str, int]

_COLUMNS = ("received_bytes", "received_packets", "receive_errors", "receive_drops", "", "", "", "",
            "sent_bytes", "sent_packets", "send_errors", "send_drops")  # fmt: skip
"""The columns of /proc/net/dev; empty: not used. Source: proc(5)."""

_WORDS = 4
"""Bytes per unit of `port_xmit_data` and `port_rcv_data`. Source: sysfs-class-infiniband of the kernel's ABI."""


class InterfaceTraffic(FrozenConfig):
    """Traffic of one network interface, from the kernel's counters. RDMA bypasses them."""

    name: str
    loopback: bool
    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int
    drops: int
    """Packets in both directions, without those that a queueing discipline or a firewall dropped."""
    errors: int


class RailTraffic(FrozenConfig):
    """Traffic of one port of an RDMA adapter, from its own counters. None: the adapter does not count this."""

    name: str
    """`DEVICE/PORT`."""
    sent_bytes: int
    received_bytes: int
    rdma_write_bytes: int | None
    """Bytes that this adapter wrote to the memory of other hosts."""
    rdma_read_bytes: int | None
    """Bytes that this adapter read from the memory of other hosts."""
    retransmitted_bytes: int | None
    drops: int | None
    """Packets in both directions."""


class TransportTraffic(FrozenConfig):
    """Traffic of TCP and UDP in this network namespace."""

    tcp_sent_segments: int
    """Segments sent for the first time, without retransmissions."""
    tcp_retransmitted_segments: int
    tcp_timeouts: int
    """Retransmission timers that expired because no acknowledgement had arrived in time."""
    tcp_receive_drops: int
    """Segments dropped because a receive buffer or an accept queue was full."""
    udp_receive_drops: int
    """Datagrams dropped because a receive buffer was full."""


class Traffic(FrozenConfig):
    """Data that a host sent and received between two readings of its counters."""

    seconds: float
    interfaces: tuple[InterfaceTraffic, ...]
    rails: tuple[RailTraffic, ...]
    interface_imbalance_percent: float | None
    """Percentage by which the busiest interface exceeds the mean, over all interfaces that carried any bytes but the
    loopback. None: fewer than two carried any."""
    rail_imbalance_percent: float | None
    """Percentage by which the busiest rail exceeds the mean, over all rails, idle ones included. None: there are fewer
    than two, or none carried anything."""
    transport: TransportTraffic


class Reading(FrozenConfig):
    """The counters at one moment, since the host started or the device appeared."""

    interfaces: dict[str, Counts]
    rails: dict[str, Counts]
    transport: Counts


def read_counters(proc: Path = PROC, sysfs: Path = SYSFS) -> Reading:
    """Read all counters of this network namespace. Raises OSError if the kernel does not list its interfaces."""
    return Reading(interfaces=_interfaces(proc), rails=_rails(sysfs), transport=_transport(proc))


def host_sent_bytes(proc: Path = PROC) -> float:
    """Bytes that all interfaces of this host have sent, loopback included. Raises OSError if there are no counters."""
    return float(sum(counts["sent_bytes"] for counts in _interfaces(proc).values()))


def traffic_between(before: Reading, after: Reading, seconds: float) -> Traffic:
    """Growth of the counters between two readings. seconds: the time between them.

    A device that appeared in between has counted from 0; one that disappeared is left out.
    """
    interfaces = [
        _interface_traffic(name, _growth(before.interfaces.get(name, {}), counts))
        for name, counts in after.interfaces.items()
    ]
    rails = [_rail_traffic(name, _growth(before.rails.get(name, {}), counts)) for name, counts in after.rails.items()]
    carried = [each.sent_bytes + each.received_bytes for each in interfaces if not each.loopback]
    return Traffic(
        seconds=seconds,
        interfaces=tuple(interfaces),
        rails=tuple(rails),
        interface_imbalance_percent=imbalance_percent([count for count in carried if count]),
        rail_imbalance_percent=imbalance_percent([rail.sent_bytes + rail.received_bytes for rail in rails]),
        transport=_transport_traffic(_growth(before.transport, after.transport)),
    )


def imbalance_percent(loads: list[int]) -> float | None:
    """Percentage by which the largest load exceeds the mean; None: there are fewer than two loads, or all are 0."""
    if len(loads) < 2 or not any(loads):
        return None
    return 100 * (max(loads) * len(loads) / sum(loads) - 1)


def _growth(before: Counts, after: Counts) -> Counts:
    """Growth of each counter. One that is smaller than before was reset, and has counted from 0 since."""
    return {name: now - before.get(name, 0) if now >= before.get(name, 0) else now for name, now in after.items()}


def _interfaces(proc: Path) -> dict[str, Counts]:
    """Counters by interface of this process's network namespace, which /sys may not show."""
    found = {}
    for line in (proc / "net/dev").read_text().splitlines():
        name, colon, columns = line.rpartition(":")
        if colon:
            counts = dict(zip(_COLUMNS, map(int, columns.split()), strict=False))
            found[name.strip()] = {column: count for column, count in counts.items() if column}
    return found


def _rails(sysfs: Path) -> dict[str, Counts]:
    return {
        f"{port.parents[1].name}/{port.name}": {
            counter.name: count
            for folder in ("counters", "hw_counters")
            for counter in sorted((port / folder).glob("*"))
            if (count := _number(counter)) is not None
        }
        for port in sorted((sysfs / "class/infiniband").glob("*/ports/*"))
    }


def _number(file: Path) -> int | None:
    """The number in a file; None: the adapter lacks this counter, or the file is a parameter such as `lifespan`."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _transport(proc: Path) -> Counts:
    """Counters of snmp and netstat by `PROTOCOL.NAME`: each is a line of names followed by a line of numbers."""
    counts: Counts = {}
    for file in ("net/snmp", "net/netstat"):
        try:
            lines = (proc / file).read_text().splitlines()
        except OSError:
            continue
        for names, numbers in zip(lines[::2], lines[1::2], strict=False):
            protocol, *columns = names.split()
            counts |= {
                f"{protocol}{column}".replace(":", "."): int(number)
                for column, number in zip(columns, numbers.split()[1:], strict=False)
                if re.fullmatch(r"-?\d+", number)
            }
    return counts


def _interface_traffic(name: str, counts: Mapping[str, int]) -> InterfaceTraffic:
    plain = ("sent_bytes", "received_bytes", "sent_packets", "received_packets")
    return InterfaceTraffic(
        name=name,
        loopback=name == LOOPBACK,
        drops=counts["receive_drops"] + counts["send_drops"],
        errors=counts["receive_errors"] + counts["send_errors"],
        **{column: counts[column] for column in plain},
    )


def _rail_traffic(name: str, counts: Mapping[str, int]) -> RailTraffic:
    """Traffic of a rail. EFA counts bytes, InfiniBand words of _WORDS bytes. Source: efa_verbs.c of Linux."""

    def total(*names: str) -> int | None:
        known = [counts[each] for each in names if each in counts]
        return sum(known) if known else None

    def data(efa: str, words: str) -> int:
        return counts[efa] if efa in counts else _WORDS * counts.get(words, 0)

    return RailTraffic(
        name=name,
        sent_bytes=data("tx_bytes", "port_xmit_data"),
        received_bytes=data("rx_bytes", "port_rcv_data"),
        rdma_write_bytes=total("rdma_write_bytes"),
        rdma_read_bytes=total("rdma_read_bytes"),
        retransmitted_bytes=total("retrans_bytes"),
        drops=total("rx_drops", "port_xmit_discards", "port_rcv_errors"),
    )


def _transport_traffic(counts: Mapping[str, int]) -> TransportTraffic:
    dropped = ("RcvPruned", "TCPBacklogDrop", "TCPRcvQDrop", "TCPZeroWindowDrop", "ListenDrops")
    return TransportTraffic(
        tcp_sent_segments=counts.get("Tcp.OutSegs", 0),
        tcp_retransmitted_segments=counts.get("Tcp.RetransSegs", 0),
        tcp_timeouts=counts.get("TcpExt.TCPTimeouts", 0),
        tcp_receive_drops=sum(counts.get(f"TcpExt.{name}", 0) for name in dropped),
        udp_receive_drops=counts.get("Udp.RcvbufErrors", 0),
    )
