"""Interfaces of this host, and of a host in a lab whose address is known."""

import ipaddress
import json
import subprocess
import sys

import pytest

from convoy.drills.testbed.lab import Lab
from convoy.drills.testbed.lab_spec import parse_lab
from convoy.network.interfaces import interface_with, ipv4_interfaces

PRINT = "import json; from convoy.network.interfaces import ipv4_interfaces; print(json.dumps(ipv4_interfaces()))"


def test_an_interface_is_found_by_its_address() -> None:
    assert interface_with("127.0.0.1") == "lo"
    assert interface_with("203.0.113.77") is None
    for each in ipv4_interfaces():
        assert interface_with(each.address) == each.name != "lo"
        assert ipaddress.ip_address(each.address) in ipaddress.ip_network(each.network)


@pytest.mark.system
def test_a_host_has_the_interface_of_its_network_and_not_the_loopback() -> None:
    with Lab(parse_lab("2 hosts")) as lab:
        command = [*lab.command_prefix(1), sys.executable, "-c", PRINT]
        ((name, address, network),) = json.loads(subprocess.check_output(command, text=True))
    assert (name, address) == ("eth0", lab.addresses[1])
    assert ipaddress.ip_network(network).supernet_of(ipaddress.ip_network(f"{lab.addresses[0]}/32"))
