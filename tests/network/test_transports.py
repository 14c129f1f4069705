"""Tools of others between two hosts: what they say of losses against the counter of a firewall that drops packets."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from convoy.benchmark.results.transports import transport_case_name, transport_figures
from convoy.drills.testbed.mounts import run_command
from convoy.drills.testbed.namespaces import Network
from convoy.network import transports
from convoy.network.transports import Transport, TransportResult, fabric, measure_transports, rdma_write, tcp, udp
from convoy.network.turns import Meeting
from tests.network.hosts import limit_rate, on_hosts
from tests.ranks import in_a_group

SENDER, RECEIVER = 1, 0


def on_loopback(rank: int, ranks: int, made: list[Transport]) -> list[TransportResult]:
    group = dist.group.WORLD
    assert group is not None
    meeting = Meeting(rank, ranks, group, torch.device("cpu"), ("a",) * ranks)
    return measure_transports(made, meeting, server=RECEIVER, client=SENDER, address="127.0.0.1")


def without_tools(rank: int, ranks: int) -> list[TransportResult]:
    if rank == SENDER:
        transports._find = lambda tool: None  # type: ignore[assignment]
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
def network() -> Iterator[Network]:
    with Network(2) as network:
        for host in range(2):
            inside = ["ip", "netns", "exec", network.namespace_name(host)]
            # libfabric may take a link-local address, which nobody reaches for the first two seconds
            run_command(*inside, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
        yield network


def drop(network: Network, protocol: str, one_in: int) -> None:
    """Drop every so many packets of data that reach the receiver, but none of the first half of that."""
    condition = f"meta l4proto {protocol} ip saddr {network.addresses[SENDER]} meta length > 1000"
    every = f"numgen inc mod {one_in} == {one_in // 2}"
    rules = [
        "flush ruleset",
        "add table ip lossy",
        "add counter ip lossy drops",
        "add chain ip lossy input { type filter hook input priority 0 ; }",
        f"add rule ip lossy input {condition} {every} counter name drops drop",
    ]
    run_command(*on(network, RECEIVER), "nft", "; ".join(rules))


def dropped(network: Network) -> int:
    command = [*on(network, RECEIVER), "nft", "-j", "list", "counter", "ip", "lossy", "drops"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return int(json.loads(listed.stdout)["nftables"][-1]["counter"]["packets"])


def on(network: Network, host: int) -> list[str]:
    return ["ip", "netns", "exec", network.namespace_name(host)]


def measure(meeting: Meeting, kind: str, addresses: list[str], argument: Any, seconds: float) -> dict[str, Any]:
    made = {
        "tcp": lambda: [tcp(argument, seconds)],
        "udp": lambda: [udp(argument, seconds)],
        "sweeps": lambda: [replace(fabric(provider), seconds=seconds) for provider in argument] + [rdma_write(None)],
    }[kind]()
    results = measure_transports(
        made, meeting, server=RECEIVER, client=SENDER, address=addresses[meeting.rank], rounds=1
    )
    return {transport_case_name(each): transport_figures(each)._asdict() for each in results}


def run(network: Network, kind: str, argument: Any, seconds: float = 1.0) -> dict[str, Any]:
    first, second = on_hosts(network, f"{__name__}:measure", kind, network.addresses, argument, seconds)
    assert first == second
    return dict(first)


@pytest.mark.system
@pytest.mark.parametrize("one_in", [100, 1000])
def test_datagrams_that_iperf3_misses_are_those_that_the_firewall_dropped(network: Network, one_in: int) -> None:
    drop(network, "udp", one_in)
    (case,) = run(network, "udp", 100e6).values()
    drops, lost = dropped(network), case["values"]["lost_packets"]
    print(f"1 in {one_in}: {lost:.0f} lost of {case['values']['packets']:.0f}, {drops} dropped")
    assert drops >= 5
    assert drops - 1 <= lost <= drops  # the last datagram leaves no gap


@pytest.mark.system
@pytest.mark.parametrize("congestion", ["cubic", "reno", "bbr"])
def test_tcp_sends_again_at_least_what_the_firewall_dropped(network: Network, congestion: str) -> None:
    limit_rate(network, SENDER, "400mbit")
    drop(network, "tcp", 100)
    ((name, case),) = run(network, "tcp", congestion).items()
    drops = dropped(network)
    print(f"{name}: {case['samples']}, {case['values']}, {drops} dropped")
    assert name == f"iperf3, TCP {congestion}"
    assert drops >= 5
    assert case["values"]["retransmits"] >= drops
    assert 0 < case["samples"]["bytes_per_second"][0] < 50e6


@pytest.mark.system
def test_each_provider_is_swept_and_what_this_host_lacks_is_said(network: Network) -> None:
    cases = run(network, "sweeps", ["tcp", "udp;ofi_rxd", "efa", "nothing"], 2.0)
    swept = cases["fi_pingpong, tcp"]["samples"]
    assert {f"seconds.{size}" for size in (1, 64, 1536, 1048576)} <= set(swept)
    assert 0 < swept["seconds.1536"][0] < swept["seconds.1048576"][0] < 1
    assert "seconds.1024" in cases["fi_pingpong, udp;ofi_rxd"]["samples"]
    assert cases["fi_pingpong, efa"]["not_measured"] == {"fi_pingpong, efa": "no EFA device"}
    (reason,) = cases["fi_pingpong, nothing"]["not_measured"].values()
    assert re.fullmatch(r"fi_pingpong on rank [01]: .*No data available.*", reason), reason
    (reason,) = cases["ib_write_bw, RDMA"]["not_measured"].values()
    assert reason in ("ib_write_bw is not installed: apt-get install perftest", "no RDMA device")
