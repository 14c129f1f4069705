"""Between two network namespaces, the counters show the bytes that were sent, what was sent again, and drops."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from convoy.drills.testbed.namespaces import Network

pytestmark = pytest.mark.system

HALF = 20 * 10**6

RECEIVE = """
import socket
server = socket.create_server(("", 5000))
print("ready", flush=True)
connection, _ = server.accept()
while connection.recv(2**20):
    pass
"""

SEND = f"""
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as peer:
    peer.sendall(bytes({HALF}))
    print("half", file=sys.stderr, flush=True)
    sys.stdin.readline()
    peer.sendall(bytes({HALF}))
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
"""

LARGE = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
    for _ in range(10):
        way.sendto(bytes(4000), ("10.99.0.2", 9))
"""

COUNTERS = (sys.executable, "-m", "convoy", "net", "counters", "--json", "--", sys.executable, "-c")


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(2) as network:
        yield network


def transfer(network: Network, cut_seconds: float) -> dict[str, Any]:
    """The report of the sender of 40 MB, after whose half the receiver is cut off for a while."""
    receiver = [*network.command_prefix(1), sys.executable, "-c", RECEIVE]
    sender = [*network.command_prefix(0), *COUNTERS, SEND, network.addresses[1]]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(receiver, stdout=subprocess.PIPE, text=True) as receiving:
        assert receiving.stdout is not None
        assert receiving.stdout.readline() == "ready\n"
        with subprocess.Popen(sender, text=True, **pipes) as sending:  # type: ignore[call-overload]
            assert sending.stderr.readline() == "half\n"
            if cut_seconds:
                network.unplug(1)
            sending.stdin.write("\n")
            sending.stdin.flush()
            if cut_seconds:
                time.sleep(cut_seconds)
                network.plug(1)
            stdout, stderr = sending.communicate(timeout=60)
        assert (sending.returncode, stderr) == (0, "")
    report: dict[str, Any] = json.loads(stdout)
    return report


def eth0(report: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in report["interfaces"] if each["name"] == "eth0")


def test_the_bytes_of_a_transfer_are_counted_within_five_percent(network: Network) -> None:
    report = transfer(network, 0)
    assert 2 * HALF <= eth0(report)["sent_bytes"] <= 1.05 * 2 * HALF  # headers: 66 of 1514 bytes at most
    assert next(each for each in report["interfaces"] if each["loopback"])["sent_bytes"] == 0
    assert report["transport"]["tcp_timeouts"] == 0


def test_what_was_lost_while_the_receiver_was_cut_off_was_sent_again(network: Network) -> None:
    transport = transfer(network, 0.7)["transport"]
    assert transport["tcp_retransmitted_segments"] >= 1
    assert transport["tcp_timeouts"] >= 1


def test_packets_that_are_too_large_for_the_other_end_are_drops(network: Network) -> None:
    first, second = (network.namespace_name(host) for host in range(2))
    for words in (
        ["-n", first, "link", "add", "r0", "mtu", "9001", "type", "veth", "peer", "name", "r1", "netns", second],
        ["-n", first, "address", "add", "10.99.0.1/24", "dev", "r0"],
        ["-n", second, "address", "add", "10.99.0.2/24", "dev", "r1"],
        ["-n", first, "link", "set", "r0", "up"],
        ["-n", second, "link", "set", "r1", "up"],
    ):
        subprocess.run(["ip", *words], check=True)
    done = subprocess.run([*network.command_prefix(0), *COUNTERS, LARGE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (dropping,) = [each for each in json.loads(done.stdout)["interfaces"] if each["name"] == "r0"]
    assert dropping["drops"] == 10
