"""How a connection between agents is set up."""

import socket

from convoy.gang.network.connection import Link


def test_what_is_lost_is_sent_again_at_an_even_pace_whatever_the_host_s_default_is() -> None:
    link = Link(socket.socket(socket.AF_INET, socket.SOCK_STREAM), None)
    try:
        # Under BBR the kernel takes no stream for thin: see tests/system/test_partition.py for what follows.
        assert link.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
        assert link.socket.getsockopt(socket.IPPROTO_TCP, 16) == 1  # TCP_THIN_LINEAR_TIMEOUTS
    finally:
        link.close()
