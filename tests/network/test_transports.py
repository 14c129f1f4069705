"""Tools of others between two hosts: what they say of losses against the counter of a firewall that drops packets."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from convoy.benchmark.results.transports import transport_case_name, transport_figures
from convoy.drills.testbed.lab import Lab
from convoy.drills.testbed.lab_spec import parse_lab
from convoy.drills.testbed.mounts import run_command
from convoy.network import transports
from convoy.network.timing import Meeting
from convoy.network.transports import Transport, TransportResult, fabric, measure_transports, rdma_write, tcp, udp
from tests.network.hosts import on_hosts
from tests.ranks import in_a_group

SENDER, RECEIVER = 1, 0


def on_loopback(rank: int, ranks: int, made: list[Transport]) -> list[TransportResult]:
    group = dist.group.WORLD
    assert group is not None
    meeting = Meeting(rank, ranks, group, torch.device("cpu"), ("a",) * ranks)
    return measure_transports(made, meeting, server=RECEIVER, client=SENDER, address="127.0.0.1")


def without_tools(rank: int, ranks: int) -> list[TransportResult]:
    if rank == SENDER:
        patch.object(transports, "_find", return_value=None).start()
    return on_loopback(rank, ranks, [tcp("cubic", 1), fabric("tcp"), rdma_write(None)])


@pytest.mark.processes
def test_a_tool_that_is_missing_is_not_measured_and_its_package_is_named() -> None:
    first, second = in_a_group(2, without_tools, 2)
    assert first == second
    assert [(result.readings, result.not_measured) for result in first] == [
        ((), f"{tool} is not installed: apt-get install {package}")
        for tool, package in (("iperf3", "iperf3"), ("fi_pingpong", "libfabric-bin"), ("ib_write_bw", "perftest"))
    ]


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with Lab(parse_lab(getattr(request, "param", "2 hosts"))) as lab:
        for host in range(2):
            # libfabric may take a link-local address, which nobody reaches for the first two seconds
            run_command(*lab.command_prefix(host), "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
        yield lab


def drop(lab: Lab, protocol: str, one_in: int) -> None:
    """Drop every so many packets of data that reach the receiver, but none of the first half of that."""
    condition = f"meta l4proto {protocol} ip saddr {lab.addresses[SENDER]} meta length > 1000"
    every = f"numgen inc mod {one_in} == {one_in // 2}"
    rules = [
        "flush ruleset",
        "add table ip lossy",
        "add counter ip lossy drops",
        "add chain ip lossy input { type filter hook input priority 0 ; }",
        f"add rule ip lossy input {condition} {every} counter name drops drop",
    ]
    run_command(*lab.command_prefix(RECEIVER), "nft", "; ".join(rules))


def dropped(lab: Lab) -> int:
    command = [*lab.command_prefix(RECEIVER), "nft", "-j", "list", "counter", "ip", "lossy", "drops"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return int(json.loads(listed.stdout)["nftables"][-1]["counter"]["packets"])


def overflowed(lab: Lab) -> int:
    """Datagrams that found the receiver's socket full, as they do where this host has other work."""
    command = [*lab.command_prefix(RECEIVER), "cat", "/proc/net/snmp"]
    names, values = [
        line.split() for line in subprocess.check_output(command, text=True).splitlines() if line.startswith("Udp:")
    ]
    return int(values[names.index("RcvbufErrors")])


def measure(meeting: Meeting, kind: str, addresses: list[str], argument: Any, seconds: float) -> dict[str, Any]:
    made = {
        "tcp": lambda: [tcp(each, seconds) for each in argument],
        "udp": lambda: [udp(argument, seconds)],
        "sweeps": lambda: (
            [replace(fabric(each), seconds=limit) for each, limit in argument.items()] + [rdma_write(None)]
        ),
    }[kind]()
    results = measure_transports(
        made, meeting, server=RECEIVER, client=SENDER, address=addresses[meeting.rank], rounds=1
    )
    return {transport_case_name(each): transport_figures(each)._asdict() for each in results}


def run(lab: Lab, kind: str, argument: Any, seconds: float = 1.0) -> dict[str, Any]:
    first, second = on_hosts(lab, f"{__name__}:measure", kind, lab.addresses, argument, seconds)
    assert first == second
    return dict(first)


@pytest.mark.system
@pytest.mark.alone
@pytest.mark.parametrize("one_in", [100, 1000])
def test_datagrams_that_iperf3_misses_are_those_that_the_firewall_dropped(lab: Lab, one_in: int) -> None:
    drop(lab, "udp", one_in)
    (case,) = run(lab, "udp", 300e6).values()
    drops, overflows, lost = dropped(lab), overflowed(lab), case["values"]["lost_packets"]
    print(f"1 in {one_in}: {lost:.0f} lost of {case['values']['packets']:.0f}, {drops} dropped, {overflows} overflowed")
    assert drops >= 3
    assert drops + overflows - 1 <= lost <= drops + overflows  # the last datagram leaves no gap


@pytest.mark.system
@pytest.mark.alone
@pytest.mark.parametrize("lab", ["2 hosts, 400mbit"], indirect=True)
def test_tcp_sends_again_at_least_what_the_firewall_dropped_by_each_congestion_control(lab: Lab) -> None:
    drop(lab, "tcp", 100)
    cases = run(lab, "tcp", ["cubic", "reno", "bbr"])
    drops = dropped(lab)
    print({name: (case["samples"], case["values"]) for name, case in cases.items()}, f"{drops} dropped")
    assert list(cases) == ["iperf3, TCP cubic", "iperf3, TCP reno", "iperf3, TCP bbr"]
    assert drops >= 5
    # The last packets of each connection may be dropped after iperf3 has read how many were sent again.
    assert sum(case["values"]["retransmits"] for case in cases.values()) >= drops - 2 * len(cases)
    assert all(0 < case["samples"]["bytes_per_second"][0] < 50e6 for case in cases.values())


@pytest.mark.system
@pytest.mark.alone
def test_each_provider_is_swept_and_what_this_host_lacks_is_said(lab: Lab) -> None:
    cases = run(lab, "sweeps", {"tcp": 8.0, "udp;ofi_rxd": 3.0, "efa": 1.0, "nothing": 1.0}, 0)
    for name in ("fi_pingpong, tcp", "fi_pingpong, udp;ofi_rxd"):
        assert 0 < cases[name]["samples"]["seconds.1"][0] < 0.1
        if "seconds.6291456" not in cases[name]["samples"]:
            assert re.fullmatch(r"did not finish within \d s", cases[name]["not_measured"]["larger sizes"])
    assert cases["fi_pingpong, efa"]["not_measured"] == {"fi_pingpong, efa": "no EFA device"}
    (reason,) = cases["fi_pingpong, nothing"]["not_measured"].values()
    assert re.fullmatch(r"fi_pingpong on rank [01]: .*No data available.*", reason), reason
    (reason,) = cases["ib_write_bw, RDMA"]["not_measured"].values()
    assert reason in ("ib_write_bw is not installed: apt-get install perftest", "no RDMA device")
