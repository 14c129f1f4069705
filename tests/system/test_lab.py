"""The lab's links, against tools that know nothing of it: iperf3 and the counters of nftables."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from convoy.config.errors import ConfigError
from convoy.drills.testbed.lab import DELAYED_MTU, MTU, Lab
from convoy.drills.testbed.lab_spec import parse_lab

pytestmark = [pytest.mark.system, pytest.mark.alone, pytest.mark.timeout(120)]

SECONDS = 1

CARRIED = {mtu: (mtu - 52) / (mtu + 14) for mtu in (MTU, DELAYED_MTU)}
"""Share of a frame that TCP's data is: headers of Ethernet, IP, and TCP with its timestamps are 14, 20, 32 bytes."""


@contextmanager
def lab_of(text: str) -> Iterator[Lab]:
    with Lab(parse_lab(text)) as lab:
        yield lab


@contextmanager
def iperf_server(lab: Lab, host: int) -> Iterator[None]:
    server = subprocess.Popen(
        [*lab.command_prefix(host), "iperf3", "-s", "--forceflush"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        while "listening" not in server.stdout.readline():
            pass
        yield
    finally:
        server.kill()
        server.communicate()


def iperf(lab: Lab, client: int, server: int, *options: str, rail: int = 0) -> dict[str, Any]:
    """What iperf3 found between two hosts."""
    address = lab.addresses_on(rail)[server]
    command = ["iperf3", "-c", address, "-t", str(SECONDS), "-J", *options]
    with iperf_server(lab, server):
        done = subprocess.run([*lab.command_prefix(client), *command], capture_output=True, text=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    assert "error" not in found, found["error"]
    end: dict[str, Any] = found["end"]
    return end


def received_megabits(found: dict[str, Any]) -> float:
    return float(found["sum_received"]["bits_per_second"]) / 1e6


def test_a_link_has_its_rate_and_a_slow_port_is_slow_in_its_direction_alone() -> None:
    with lab_of("2 hosts, 400mbit, host 0 sends 100mbit") as lab:
        slow, quick = received_megabits(iperf(lab, 0, 1)), received_megabits(iperf(lab, 1, 0))
    assert slow == pytest.approx(100 * CARRIED[MTU], rel=0.05)
    assert quick == pytest.approx(400 * CARRIED[MTU], rel=0.05)


def test_a_trunk_limits_what_crosses_it_and_nothing_else() -> None:
    with lab_of("4 hosts, 400mbit, trunk 200mbit") as lab:
        across, within = received_megabits(iperf(lab, 0, 2)), received_megabits(iperf(lab, 0, 1))
    assert across == pytest.approx(200 * CARRIED[MTU], rel=0.05)
    assert within == pytest.approx(400 * CARRIED[MTU], rel=0.05)


def test_each_rail_has_the_rate() -> None:
    with lab_of("2 hosts, 200mbit, 2 rails") as lab:
        rates = [received_megabits(iperf(lab, 0, 1, rail=rail)) for rail in range(2)]
    assert rates == [pytest.approx(200 * CARRIED[MTU], rel=0.05)] * 2


def test_tcp_sends_again_what_was_dropped() -> None:
    with lab_of("2 hosts, 400mbit, loss 1%") as lab:
        found = iperf(lab, 0, 1)
        dropped = lab.drops()[0]
    assert dropped > 20
    assert found["sum_sent"]["retransmits"] >= dropped


def test_congestion_controls_differ_on_a_lossy_link_with_a_delay() -> None:
    rates = {}
    for control in ("reno", "cubic", "bbr"):
        with lab_of(f"2 hosts, 400mbit, loss 1%, delay 5ms, {control}") as lab:
            found = iperf(lab, 0, 1)
            assert found["sender_tcp_congestion"] == control
            rates[control] = received_megabits(found)
    assert rates["bbr"] > 2 * max(rates["reno"], rates["cubic"]), rates


def test_frames_are_held_for_the_delay_and_the_link_keeps_its_rate() -> None:
    with lab_of("2 hosts, 400mbit, delay 5ms") as lab:
        quiet = iperf(lab, 0, 1, "-b", "1M")
        round_trip = quiet["streams"][0]["sender"]["min_rtt"] / 1e6
        found = iperf(lab, 0, 1)
        first, second = lab.relay_counts()
    assert 0.010 <= round_trip < 0.015
    assert received_megabits(found) == pytest.approx(400 * CARRIED[DELAYED_MTU], rel=0.1)
    assert 1000 < first.held <= second.passed < first.held + 100  # with what the switch itself says to its ports
    assert first.lost == second.lost == 0


def test_once_a_host_fails_the_others_are_ended_and_it_is_named() -> None:
    with lab_of("3 hosts") as lab:
        command = ["sh", "-c", 'if [ "$HOST" = 1 ]; then echo no such thing; exit 3; fi; sleep 60']
        began = time.monotonic()
        failed = lab.run_on_hosts(command, [{"HOST": str(host), "PATH": "/usr/bin:/bin"} for host in range(3)], print)
        assert time.monotonic() - began < 20
    assert failed == ["host 1 ended with exit code 3: no such thing"]


def test_without_root_the_lab_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="--lab: needs root"):
        Lab(parse_lab("2 hosts"))
