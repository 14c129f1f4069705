"""Labs carry, lose and delay what their text says, as iperf3 and the counters of the kernel and nftables see it."""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from convoy.drills.testbed.host_runs import HostCommand, HostRun, run_on_hosts
from convoy.drills.testbed.lab import CARRIED, Lab, burst_bytes
from convoy.drills.testbed.lab_spec import CONGESTION_CONTROLS, parse_lab
from convoy.network.results.iperf3 import parse_iperf3

pytestmark = [pytest.mark.system, pytest.mark.alone, pytest.mark.timeout(120)]

WITHIN = 0.05
"""Of the rate, which a flow never exceeds."""

TRIES = 4
"""Other work on the machine may make a flow slower, and nothing makes it faster."""

SECONDS = ("-t", "1")

QUIET_UDP = ("-t", "2", "--pacing-timer", "65000")
QUIET_TCP = ("-t", "3", "--pacing-timer", "1600000")
"""Once in so many microseconds, iperf3 sends what is due at its rate. As the last time is well before the end, all that
arrives is read and all that is lost is repaired. A server of iperf3 reads nothing once it hears of the end."""

FALLS = 5
"""Of windows, of which at least so many are seen for their median."""

SOCKETS = "while sleep 0.01; do ss -tinHO; done"
"""The state of all connections of a host, a line for each, some 30 times a second."""


PROBE = """
import socket, sys, time
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if sys.argv[1] == "echo":
    probe.bind((sys.argv[2], 7777))
    for _ in range(int(sys.argv[3]) + 1):
        probe.sendto(*probe.recvfrom(100))
else:
    probe.settimeout(0.2)
    times = []
    while len(times) <= int(sys.argv[3]):
        began = time.perf_counter()
        probe.sendto(b"x", (sys.argv[2], 7777))
        try:
            probe.recv(100)
        except TimeoutError:  # the other is not there yet
            continue
        times.append(time.perf_counter() - began)
    print(sorted(times[1:])[len(times) // 4])
"""
"""The first question asks for the address too. The quartile: what takes longer waited for a processor."""


MESSAGES = """
import socket, sys, time
role, address, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "echo":
    connection, _ = socket.create_server((address, 7777)).accept()
    for _ in range(10):
        left = size
        while left:
            left -= len(connection.recv(left))
        connection.send(b"x")
else:
    while True:
        try:
            connection = socket.create_connection((address, 7777))
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    for _ in range(10):
        time.sleep(0.02)
        began = time.perf_counter()
        connection.sendall(bytes(size))
        connection.recv(1)
        print(time.perf_counter() - began)
"""
"""The link is idle before each message."""


@contextmanager
def lab(text: str) -> Iterator[Lab]:
    with Lab(parse_lab(text)) as opened:
        yield opened


def flows(lab: Lab, *pairs: tuple[int, int], options: tuple[str, ...] = (), rails: tuple[int, ...] = (0,)) -> list[Any]:
    """How iperf3's reports end: see `reports`."""
    return [report["end"] for report in reports(lab, *pairs, options=options, rails=rails)]


def reports(
    lab: Lab, *pairs: tuple[int, int], options: tuple[str, ...] = (), rails: tuple[int, ...] = (0,)
) -> list[Any]:
    """iperf3's reports, of one flow at the same time on each rail for each pair of sender and receiver."""
    servers, clients = [], []
    for port, (sender, receiver, rail) in enumerate(((*pair, rail) for pair in pairs for rail in rails), 5201):
        address = lab.addresses_on(rail)[receiver]
        common = ("iperf3", "--port", str(port))
        server = subprocess.Popen(
            [*lab.command_prefix(receiver), *common, "--server", "--one-off", "--bind", address, "--forceflush"],
            stdout=subprocess.PIPE,
            text=True,
        )
        servers.append(server)
        assert server.stdout is not None
        assert any("listening" in line for line in server.stdout)
        to = ("--client", address, "--json", *(options or SECONDS))
        clients.append(HostCommand(lab.command_prefix(sender), [*common, *to], os.environ))
    runs = run_on_hosts(clients, 30)
    for server in servers:
        server.communicate(timeout=10)
    return [json.loads(run.output) for run in runs]


def between(lab: Lab, script: str, *arguments: str) -> list[HostRun]:
    """What becomes of a script on two hosts, of which the second has the address that both are given."""
    words = [[sys.executable, "-c", script, role, lab.addresses[1], *arguments] for role in ("ask", "echo")]
    return run_on_hosts([HostCommand(lab.command_prefix(host), words[host], os.environ) for host in range(2)], 30)


def megabits(end: Any) -> float:
    """Per second, that arrived."""
    return float(end["sum_received"]["bits_per_second"]) / 1e6


def fastest(lab: Lab, *pairs: tuple[int, int], due: float, rails: tuple[int, ...] = (0,)) -> float:
    """Mbit/s of all flows, of as few tries as it takes to be near what is due."""
    seen = 0.0
    for _ in range(TRIES):
        seen = max(seen, sum(megabits(end) for end in flows(lab, *pairs, rails=rails)))
        if seen > due * (1 - WITHIN):
            break
    print(f"{pairs} on rails {rails}: {seen:.1f} Mbit/s of {due}, of which {due * CARRIED:.1f} are messages")
    return seen


def test_tcp_gets_the_rate_in_each_direction() -> None:
    with lab("2 hosts, 400mbit, cubic") as two:
        seen = [fastest(two, pair, due=400) for pair in ((0, 1), (1, 0))]
    assert seen == pytest.approx([400, 400], rel=WITHIN)
    assert max(seen) < 400


def test_a_slow_port_is_slow_in_its_direction_alone() -> None:
    rates = {(1, 0): 50, (0, 1): 200, (0, 2): 100, (2, 0): 200}
    with lab("3 hosts, 200mbit, cubic, host 1 sends 50mbit, host 2 receives 100mbit") as three:
        seen = {pair: fastest(three, pair, due=rate) for pair, rate in rates.items()}
    assert seen == pytest.approx(rates, rel=WITHIN)


def test_a_trunk_limits_the_sum_of_what_crosses_it() -> None:
    with lab("4 hosts, 200mbit, trunk 200mbit, bbr") as four:
        across = fastest(four, (0, 2), (1, 3), due=200)
        within = fastest(four, (0, 1), (2, 3), due=400)
    assert across == pytest.approx(200, rel=WITHIN)
    assert within == pytest.approx(400, rel=WITHIN)


def test_each_rail_has_a_trunk_of_its_own() -> None:
    with lab("4 hosts, 200mbit, 2 rails, trunk 100mbit") as four:
        assert fastest(four, (0, 3), due=200, rails=(0, 1)) == pytest.approx(200, rel=WITHIN)


def test_a_short_message_is_hardly_faster_than_the_link() -> None:
    """As it was when a link that had been idle sent 128 KiB at once."""
    with lab("2 hosts, 100mbit") as two:
        seconds = min(map(float, between(two, MESSAGES, str(2**17))[0].output.split()))
    print(f"128 KiB at {2**17 * 8 / seconds / 1e6:.1f} Mbit/s")
    assert (2**17 - burst_bytes(100)) * 8 / 100e6 < seconds * 1.02
    assert seconds < 1.5 * 2**17 * 8 / 100e6


def test_two_rails_carry_twice_as_much() -> None:
    with lab("2 hosts, 200mbit, 2 rails, cubic") as two:
        one, both = (fastest(two, (0, 1), due=200 * len(rails), rails=rails) for rails in ((1,), (0, 1)))
    assert both / one == pytest.approx(2, rel=WITHIN)


@pytest.mark.parametrize("loss", [0.1, 1])
def test_udp_loses_exactly_what_is_counted(loss: float) -> None:
    with lab(f"2 hosts, 200mbit, loss {loss}%, cubic") as two:
        report = parse_iperf3(json.dumps(reports(two, (0, 1), options=("-u", "-b", "2M", "-l", "100", *QUIET_UDP))[0]))
        drops, no_room = two.drops(), kernel_counts(two, 1)["Udp.RcvbufErrors"]
    sent, lost = report.packets, report.lost_packets
    print(f"iperf3: {lost} of {sent} datagrams lost, {no_room} of them for want of room; nftables: {drops}")
    assert sent is not None
    assert sent > 4000
    assert lost == drops[0, 0].udp + no_room
    share = loss / 100
    assert abs(drops[0, 0].udp / sent - share) < 5 * (share * (1 - share) / sent) ** 0.5
    assert drops[1, 0].udp == 0


@pytest.mark.parametrize("loss", [0.1, 1])
def test_tcp_sends_again_all_that_is_dropped(loss: float) -> None:
    dropped = 0
    for name in CONGESTION_CONTROLS:
        for _ in range(TRIES):
            with lab(f"2 hosts, 400mbit, loss {loss}%, {name}") as two:
                end = flows(two, (0, 1), options=("-b", "20M", "-M", "1400", *QUIET_TCP))[0]
                drops, retransmits = two.drops()[0, 0].tcp_data, kernel_counts(two, 0)["Tcp.RetransSegs"]
            sent, arrived = end["sum_sent"], end["sum_received"]["bytes"]
            print(
                f"{name}: {drops} segments dropped, {retransmits} sent again, of iperf3's stream {sent['retransmits']}"
            )
            if arrived == sent["bytes"]:  # so every loss is repaired
                break
        assert arrived == sent["bytes"]
        # The kernel counts what iperf3's control connection sent again too, and nftables what it lost.
        assert retransmits >= max(drops, sent["retransmits"])
        dropped += drops
    assert dropped > 0


def kernel_counts(lab: Lab, host: int) -> dict[str, int]:
    """The host's counters of /proc/net/snmp, by `PROTOCOL.NAME`."""
    command = [*lab.command_prefix(host), "cat", "/proc/net/snmp"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {
        f"{names.split(':')[0]}.{name}": int(value)
        for names, values in zip(lines[::2], lines[1::2], strict=True)
        for name, value in zip(names.split()[1:], values.split()[1:], strict=True)
    }


@pytest.mark.parametrize("loss", [0.1, 1])
def test_a_loss_halves_the_window_of_reno_and_leaves_seven_tenths_of_cubic_s(loss: float) -> None:
    """Linux multiplies by 1/2 and by 717/1024, and rounds down; bbr's window does not follow losses."""
    left: dict[str, list[float]] = {}
    for name, fewest in (("reno", FALLS), ("cubic", FALLS), ("bbr", 0)):
        left[name] = []
        for _ in range(TRIES):
            left[name] += window_shares(f"2 hosts, 400mbit, loss {loss}%, delay 25ms, {name}")
            if len(left[name]) >= fewest:
                break
    print({name: [round(share, 3) for share in sorted(shares)] for name, shares in left.items()})
    assert statistics.median(left["reno"]) == pytest.approx(0.5, abs=0.05)
    assert statistics.median(left["cubic"]) == pytest.approx(0.7, abs=0.05)
    assert not left["bbr"]


def window_shares(text: str) -> list[float]:
    """The window that a loss leaves, as a share of the window when it was last seen before, of connections of iperf3.

    What it leaves is the new threshold of slow start. The first threshold of a connection is left out, which cubic and
    bbr set when they end slow start, and a higher one, which undoes a fall.
    """
    with lab(text) as two, tempfile.TemporaryFile("w+") as states:
        watch = subprocess.Popen([*two.command_prefix(0), "sh", "-c", SOCKETS], stdout=states)
        end = flows(two, (0, 1), options=("-t", "3", "-P", "12"))[0]
        watch.kill()
        watch.wait()
        states.seek(0)
        lines = states.readlines()
    assert end["sum_sent"]["retransmits"] > 0
    seen: dict[str, tuple[int, str]] = {}
    shares = []
    for line in lines:
        found = re.search(r"(\S+:\d+) +\S+:5201 .* cwnd:(\d+)(?: ssthresh:(\d+))?", line)
        if found is None:
            continue
        connection, window, threshold = found.groups(default="")
        before, threshold_before = seen.get(connection, (0, ""))
        if threshold_before and threshold not in ("", threshold_before) and int(threshold) < before:
            shares.append(int(threshold) / before)
        seen[connection] = int(window), threshold
    return shares


def test_losses_slow_reno_and_cubic_and_hardly_bbr() -> None:
    seen = {}
    for name in CONGESTION_CONTROLS:
        with lab(f"2 hosts, 200mbit, loss 1%, delay 5ms, {name}") as two:
            end = flows(two, (0, 1), options=("-t", "3"))[0]
            seen[name] = megabits(end)
            assert end["sender_tcp_congestion"] == end["receiver_tcp_congestion"] == name
    print(f"Mbit/s {seen}")
    assert seen["bbr"] > 1.5 * max(seen["cubic"], seen["reno"])
    # Below some 40 segments a round trip, cubic grows as reno does (RFC 9438, section 4.3).
    assert seen["cubic"] > 0.4 * seen["reno"]


@pytest.mark.parametrize("milliseconds", [1, 5])
def test_a_round_trip_takes_twice_the_delay(milliseconds: int) -> None:
    with lab(f"2 hosts, 400mbit, delay {milliseconds}ms, trunk 400mbit") as two:
        asked, _ = between(two, PROBE, "60")
        counts = two.relay_counts()
    seconds = float(asked.output)
    print(f"{milliseconds} ms: {seconds * 1e3:.3f} ms, {counts}")
    assert 2 * milliseconds <= seconds * 1e3 < 2 * milliseconds + 1
    assert all(count.forwarded >= 61 and count.dropped == 0 for count in counts.values())


def test_a_small_window_carries_one_window_a_round_trip() -> None:
    seen = 0.0
    with lab("2 hosts, 400mbit, delay 20ms, reno") as two:
        for _ in range(TRIES):
            end = flows(two, (0, 1), options=("-w", "128K", "-M", "4000", "-t", "2"))[0]
            due = end["streams"][0]["sender"]["max_snd_wnd"] * 8 / 40e-3 / 1e6
            seen = max(seen, megabits(end) / due)
            if seen > 0.85:
                break
    print(f"{seen * due:.2f} Mbit/s; one window every 40 ms: {due:.2f}")
    assert 0.85 < seen < 1


HOLDER = """
import time
from convoy.drills.testbed.lab import Lab
from convoy.drills.testbed.lab_spec import parse_lab
with Lab(parse_lab("2 hosts, delay 1ms, reno")) as lab:
    print(*lab.command_prefix(0)[3:], flush=True)
    time.sleep(60)
"""


def namespaces(of: str) -> set[str]:
    """That there are now, of that lab."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return set(re.findall(rf"{of}-\w+", listed.stdout))


def test_once_a_host_fails_the_others_are_ended_and_it_is_named() -> None:
    with lab("3 hosts") as three:
        command = ["sh", "-c", 'if [ "$HOST" = 1 ]; then echo no such thing; exit 3; fi; sleep 60']
        environments = [{"HOST": str(host), "PATH": "/usr/bin:/bin"} for host in range(3)]
        began = time.monotonic()
        assert three.run_on_hosts(command, environments, print) == ["host 1 ended with exit code 3: no such thing"]
        assert time.monotonic() - began < 20
        late = three.run_on_hosts(["sleep", "60"], environments, print, timeout_seconds=0.2)
    assert late == [f"host {host} did not end in time" for host in range(3)]


def test_nothing_is_left_of_labs_that_end_in_any_way() -> None:
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(2)
    ]
    names = [holder.stdout.readline().strip().removesuffix("-0") for holder in holders if holder.stdout]
    assert all(len(namespaces(name)) == 3 for name in names)
    holders[0].send_signal(signal.SIGTERM)
    holders[1].send_signal(signal.SIGINT)
    assert holders[0].wait(10) == 128 + signal.SIGTERM
    assert holders[1].wait(10) != 0
    assert [namespaces(name) for name in names] == [set(), set()]


def test_what_still_runs_on_a_host_ends_with_the_lab() -> None:
    with lab("2 hosts") as two:
        sleeper = subprocess.Popen([*two.command_prefix(1), "sleep", "60"])
    assert sleeper.wait(10) == -signal.SIGKILL
