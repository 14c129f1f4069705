"""Reports of iperf3, written after the keys that its sources print."""

import json
from typing import Any

import pytest

from convoy.network.results.iperf3 import parse_iperf3


def report(protocol: str, end: dict[str, Any], **more: Any) -> str:
    start = {"version": "iperf 3.12", "test_start": {"protocol": protocol, "num_streams": 2}}
    intervals = [{"sum": {"bits_per_second": rate}} for rate in (8e6, 16e6)]
    return json.dumps({"start": start, "intervals": intervals, "end": end, **more})


TCP = {
    "streams": [{"sender": {"mean_rtt": 2000}}, {"sender": {"mean_rtt": 4000}}],
    "sum_sent": {"seconds": 2.0, "bytes": 3_000_000, "bits_per_second": 12e6, "retransmits": 7},
    "sum_received": {"seconds": 2.0, "bytes": 2_900_000, "bits_per_second": 11.6e6},
    "sender_tcp_congestion": "reno",
}
COUNTED = {"seconds": 2.0, "jitter_ms": 0.5, "lost_packets": 20, "packets": 2000, "lost_percent": 1.0}
UDP = {
    "streams": [{"udp": {}}],
    "sum": {**COUNTED, "bytes": 2_800_000, "bits_per_second": 11.2e6},
    "sum_sent": {**COUNTED, "bytes": 2_800_000, "bits_per_second": 11.2e6, "lost_packets": 0},
    "sum_received": {**COUNTED, "bytes": 2_772_000, "bits_per_second": 11.088e6},
}


def test_a_tcp_report_has_the_receiver_s_rate_and_what_the_sender_sent_again() -> None:
    read = parse_iperf3(report("TCP", TCP))
    assert (read.protocol, read.congestion, read.retransmits, read.streams) == ("TCP", "reno", 7, 2)
    assert read.bytes_per_second == 1.45e6
    assert (read.sent_bytes, read.received_bytes) == (3_000_000, 2_900_000)
    assert read.round_trip_seconds == pytest.approx(3e-3)
    assert read.interval_rates == (1e6, 2e6)
    assert (read.packets, read.lost_packets, read.jitter_seconds) == (None, None, None)


def test_a_udp_report_has_the_receiver_s_losses() -> None:
    read = parse_iperf3(report("UDP", UDP))
    assert (read.packets, read.lost_packets, read.jitter_seconds) == (2000, 20, pytest.approx(5e-4))
    assert read.bytes_per_second == pytest.approx(1.386e6)
    assert (read.retransmits, read.round_trip_seconds, read.congestion) == (None, None, "")


def test_datagrams_after_the_last_one_that_was_read_are_lost_too() -> None:
    """A report of iperf 3.12 on five datagrams, of which one in the middle and the last one were dropped."""
    end = {
        "streams": [],
        "sum": {**COUNTED, "packets": 5, "lost_packets": 1, "bytes": 5000, "bits_per_second": 20e3},
        "sum_sent": {**COUNTED, "packets": 5, "lost_packets": 0, "bytes": 5000, "bits_per_second": 20e3},
        "sum_received": {**COUNTED, "packets": 4, "lost_packets": 1, "bytes": 3000, "bits_per_second": 12e3},
    }
    read = parse_iperf3(report("UDP", end))
    assert (read.packets, read.lost_packets, read.received_bytes) == (5, 2, 3000)


def test_where_no_datagram_comes_the_rate_is_zero() -> None:
    """A path whose MTU is too small passes the datagram that opens the test, and none of those that follow."""
    nothing = {**COUNTED, "packets": 2000, "lost_packets": 2000, "bytes": 0, "bits_per_second": 0.0}
    read = parse_iperf3(report("UDP", {**UDP, "sum_received": nothing}))
    assert (read.lost_packets, read.received_bytes, read.bytes_per_second) == (2000, 0, 0.0)


def test_with_omitted_seconds_the_receiver_s_own_count_is_taken() -> None:
    """Both ends begin to count when their own time is over, so that the receiver may count more than the sender."""
    end = {**UDP, "sum": {**UDP["sum"], "lost_packets": 0}, "sum_received": {**UDP["sum_received"], "packets": 2004}}
    text = report("UDP", end).replace('"num_streams": 2', '"num_streams": 2, "omit": 1')
    assert parse_iperf3(text).lost_packets == 0


def test_the_server_s_own_udp_report_has_the_losses_that_it_saw() -> None:
    sent = {**COUNTED, "packets": 0, "lost_packets": 0, "bytes": 0, "bits_per_second": 0.0}
    read = parse_iperf3(report("UDP", {**UDP, "sum_sent": sent}))
    assert (read.packets, read.lost_packets) == (2000, 20)


def test_an_older_udp_report_has_one_sum() -> None:
    read = parse_iperf3(report("UDP", {"streams": [], "sum": UDP["sum"]}))
    assert (read.lost_packets, read.received_bytes, read.bytes_per_second) == (20, None, 1.4e6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Connecting to host", "not JSON"),
        ("[]", "no `end`"),
        (report("TCP", {}, error="unable to connect to server: Connection refused"), "^unable to connect"),
        (report("TCP", {}), "'sum_sent' is missing"),
        (report("SCTP", TCP), "SCTP"),
    ],
)
def test_what_is_no_report_of_a_test_says_why(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_iperf3(text)
