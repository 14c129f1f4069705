"""The page of `convoy net counters`: traffic of a host's interfaces and RDMA adapters."""

from convoy.display.formatting import bandwidth, duration, size
from convoy.display.page import Block, Column, Heading, Page, Text, columns
from convoy.network.counters import Traffic, TransportTraffic

_TITLE = "Traffic of this host"


def traffic_page(traffic: Traffic) -> Page:
    """Tables of the interfaces and the RDMA adapters, their imbalance, and the losses of TCP and UDP."""
    seconds = traffic.seconds

    def rate(count: int) -> str:
        return bandwidth(count / seconds) if seconds else ""

    blocks: list[Block] = [
        Heading(_TITLE, level=1),
        Text(f"In {duration(seconds)}, of all processes in this network namespace.", quiet=True),
        columns(
            traffic.interfaces,
            Column("interface", lambda each: f"{each.name} (loopback)" if each.loopback else each.name),
            Column("sent", lambda each: each.sent_bytes, size, right=True),
            Column("received", lambda each: each.received_bytes, size, right=True),
            Column("sent per second", lambda each: each.sent_bytes, rate, right=True),
            Column("drops", lambda each: each.drops, right=True),
            Column("errors", lambda each: each.errors, right=True),
        ),
    ]
    if traffic.interface_imbalance_percent is not None:
        blocks.append(
            Text(f"The busiest interface carried {traffic.interface_imbalance_percent:.1f} % more than the mean.")
        )
    if traffic.rails:
        blocks += [Heading("RDMA"), columns(
            traffic.rails,
            Column("adapter", lambda each: each.name),
            Column("sent", lambda each: each.sent_bytes, size, right=True),
            Column("received", lambda each: each.received_bytes, size, right=True),
            Column("written", lambda each: each.rdma_write_bytes, size, right=True),
            Column("read", lambda each: each.rdma_read_bytes, size, right=True),
            Column("retransmitted", lambda each: each.retransmitted_bytes, size, right=True),
            Column("drops", lambda each: each.drops, right=True),
            drop_empty=True,
        )]  # fmt: skip
    else:
        blocks.append(Text("This host has no RDMA adapter.", quiet=True))
    if traffic.rail_imbalance_percent is not None:
        blocks.append(Text(f"The busiest adapter carried {traffic.rail_imbalance_percent:.1f} % more than the mean."))
    blocks.append(Text(_transport(traffic.transport)))
    return Page(_TITLE, tuple(blocks))


def _transport(transport: TransportTraffic) -> str:
    return (
        f"TCP sent {transport.tcp_sent_segments:,} segments, retransmitted {transport.tcp_retransmitted_segments:,}, "
        f"and had {transport.tcp_timeouts:,} timeouts. Receivers dropped {transport.tcp_receive_drops:,} segments of "
        f"TCP and {transport.udp_receive_drops:,} datagrams of UDP."
    )
