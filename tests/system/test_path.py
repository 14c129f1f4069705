"""The largest packet on the way to a host is found, whether a router names it or a switch drops what is larger."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from convoy.drills.testbed.namespaces import Network

pytestmark = pytest.mark.system

EXAMINE = """
import sys
from convoy.network.path import examine_path
path = examine_path(sys.argv[1], int(sys.argv[2]))
print(path.interface, path.mtu, path.round_trip_seconds)
"""


def run(network: Network, host: int, *words: str) -> str:
    done = subprocess.run([*network.command_prefix(host), *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def examined(network: Network, address: str, mtu: int = 9001) -> tuple[str, int | None]:
    interface, found, seconds = run(network, 0, sys.executable, "-c", EXAMINE, address, str(mtu)).split()
    assert (found == "None") == (seconds == "None")
    assert seconds == "None" or 0 < float(seconds) < 0.2
    return interface, None if found == "None" else int(found)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Three hosts; a link of MTU 1300 leads from the second, which forwards, to 10.99.0.2, which the third has."""
    with Network(3, mtu=9001) as network:
        names = [network.namespace_name(host) for host in range(3)]
        run(network, 1, "ip", "link", "add", "r0", "mtu", "1300", "type", "veth",
            "peer", "name", "r1", "mtu", "1300", "netns", names[2])  # fmt: skip
        for host, link in ((1, "r0"), (2, "r1")):
            run(network, host, "ip", "address", "add", f"10.99.0.{host}/24", "dev", link)
            run(network, host, "ip", "link", "set", link, "up")
        run(network, 1, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        run(network, 0, "ip", "route", "add", "10.99.0.0/24", "via", network.addresses[1])
        run(network, 2, "ip", "route", "add", "10.77.0.1/32", "via", "10.99.0.1", "dev", "r1")
        yield network


def test_a_path_of_one_mtu_carries_it_whole(network: Network) -> None:
    assert examined(network, network.addresses[1]) == ("eth0", 9001)


def test_a_router_names_the_mtu_of_its_next_link(network: Network) -> None:
    assert examined(network, "10.99.0.2") == ("eth0", 1300)


def test_packets_that_a_switch_drops_are_found_missing(network: Network) -> None:
    run(network, 1, "ip", "link", "set", "eth0", "mtu", "1450")
    try:
        assert examined(network, network.addresses[1]) == ("eth0", 1450)
    finally:
        run(network, 1, "ip", "link", "set", "eth0", "mtu", "9001")


def test_a_host_that_answers_nothing_leaves_the_path_unknown(network: Network) -> None:
    network.unplug(2)
    try:
        assert examined(network, network.addresses[2]) == ("eth0", None)
    finally:
        network.plug(2)


def test_no_route_is_one_line(network: Network) -> None:
    with pytest.raises(AssertionError, match=r"--peer 203\.0\.113\.1: cannot be reached: Network is unreachable"):
        examined(network, "203.0.113.1")
