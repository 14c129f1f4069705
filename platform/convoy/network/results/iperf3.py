"""What iperf3 reports with --json, of version 3.1 and newer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Iperf3Report:
    """One test, all streams together."""

    protocol: Literal["TCP", "UDP"]
    seconds: float
    sent_bytes: float
    """Payload that the sender handed to the kernel."""
    received_bytes: float | None
    """Payload that the receiver reported; None: it reported none, as over UDP before 3.2."""
    bytes_per_second: float
    """Payload at the receiver, or the sender where the receiver reported none."""
    interval_rates: tuple[float, ...]
    """Bytes per second of each interval of the report, at this end."""
    streams: int
    congestion: str
    """TCP's congestion control at the sender; empty: not reported, or UDP."""
    retransmits: int | None
    """Segments that TCP sent again; None: UDP, or not reported."""
    round_trip_seconds: float | None
    """Mean of TCP's own estimates over the streams; None: UDP, or not reported."""
    packets: int | None
    """Datagrams that were sent; None: TCP."""
    lost_packets: int | None
    """Datagrams that the receiver did not read: lost on the way, without room in its buffer, or unread when the test
    ended. None: TCP."""
    jitter_seconds: float | None
    """Variation of the datagrams' travel time, as RFC 1889; None: TCP."""
    version: str
    """Such as `iperf 3.12`."""


def parse_iperf3(text: str) -> Iperf3Report:
    """The report of either end. Raises ValueError with iperf3's own error, or with what is missing in the text."""
    try:
        report = json.loads(text)
    except ValueError:
        raise ValueError("not JSON: iperf3 writes it with --json") from None
    if not isinstance(report, Mapping) or not isinstance(report.get("end"), Mapping):
        raise ValueError("not a report of iperf3: it has no `end`")
    if "error" in report:
        raise ValueError(str(report["error"]))
    try:
        return _report(report, report["start"], report["end"])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a complete report of iperf3: {error} is missing") from None


def _report(report: Mapping[str, Any], start: Mapping[str, Any], end: Mapping[str, Any]) -> Iperf3Report:
    protocol = start["test_start"]["protocol"]
    if protocol not in ("TCP", "UDP"):
        raise ValueError(f"a test over {protocol}: only TCP and UDP are read")
    udp = protocol == "UDP"
    sent = end["sum"] if udp and "sum_sent" not in end else end["sum_sent"]
    received = end.get("sum_received")
    counted = end["sum"] if udp and "sum" in end else sent  # of datagrams: the receiver's counts
    # Before 3.2 the receiver of datagrams reports none, in the same words as if none had come.
    at_receiver = received if received and (received["bytes"] or received.get("packets")) else None
    trips = [1e-6 * each["sender"]["mean_rtt"] for each in end["streams"] if "mean_rtt" in each.get("sender", {})]
    return Iperf3Report(
        protocol=protocol,
        seconds=float(sent["seconds"]),
        sent_bytes=float(sent["bytes"]),
        received_bytes=None if at_receiver is None else float(at_receiver["bytes"]),
        bytes_per_second=float((at_receiver or sent)["bits_per_second"]) / 8,
        interval_rates=tuple(float(each["sum"]["bits_per_second"]) / 8 for each in report.get("intervals", [])),
        streams=int(start["test_start"].get("num_streams", 1)),
        congestion=str(end.get("sender_tcp_congestion", "")),
        retransmits=None if udp or "retransmits" not in sent else int(sent["retransmits"]),
        round_trip_seconds=sum(trips) / len(trips) if trips else None,
        packets=int(counted["packets"]) if udp else None,
        lost_packets=_lost_packets(start["test_start"], end, counted) if udp else None,
        jitter_seconds=1e-3 * float(counted["jitter_ms"]) if udp else None,
        version=str(start["version"]),
    )


def _lost_packets(test: Mapping[str, Any], end: Mapping[str, Any], counted: Mapping[str, Any]) -> int:
    """What the sender counted less what the receiver did, where the report has both, which is so at the client.

    The receiver by itself counts the gaps between the numbers of the datagrams that it reads. It does not know of those
    that were sent after the last one that it read: of five datagrams of which the last two are lost, it reports three
    without a loss. With --omit, both ends begin to count at times of their own, so the receiver's count is taken.
    """
    sent, received = end.get("sum_sent", {}).get("packets"), end.get("sum_received", {})
    if not sent or "packets" not in received or test.get("omit"):
        return int(counted["lost_packets"])
    return int(sent) - (int(received["packets"]) - int(received["lost_packets"]))
