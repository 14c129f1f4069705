"""Loss and delay between the hosts of a lab, each with counts of its own that are the truth about it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from convoy.drills.testbed import relay
from convoy.drills.testbed.mounts import run_command
from convoy.drills.testbed.namespaces import Network
from convoy.drills.testbed.relay import RelayCounts

Side = tuple[int, int]
"""A host and a rail: what that host sends on that rail."""

WAITING_FRAMES = 5_000
"""Between the kernel and the relay: what arrives while the relay waits for a processor."""


TCP_HEADERS = 80
"""Most bytes of the headers of IP, without options, and TCP. A longer packet carries data."""

KINDS = {
    "tcp_data": f"ip protocol tcp ip length > {TCP_HEADERS}",
    "tcp_short": f"ip protocol tcp ip length <= {TCP_HEADERS}",
    "udp": "ip protocol udp",
    "other": "ip protocol != { tcp, udp }",
}
"""Kinds of frames that are counted separately, as nftables matches them: a test over UDP has a TCP connection too."""

SPARED = "ip protocol udp udp length 12"
"""Never dropped: the datagrams of 4 bytes by which iperf3 opens a test over UDP. It waits for a lost one for 30 s, and
then fails (iperf_udp_connect of iperf 3.12)."""


@dataclass(frozen=True)
class Drops:
    """Frames of one host on one rail that were lost on purpose."""

    tcp_data: int
    """Segments of TCP with data, which it has to send again."""
    tcp_short: int
    """Segments too short to be certain of that: acknowledgements, which TCP does not send again, what opens or closes a
    connection, and a few bytes of data."""
    udp: int
    other: int


OUT_OF = 10**6
"""Frames, of which a whole number is lost."""


class Loss:
    """Drops frames at random where they enter a switch, except for `SPARED` and ARP: the second for which a host waits
    for an address would be taken for a slow connection."""

    def __init__(self, network: Network, percent: float, entries: Mapping[Side, str]) -> None:
        """entries: the interface of the switch by which each host's frames enter it."""
        self._prefix = ["ip", "netns", "exec", network.switch, "nft"]
        self._names = {side: f"host{side[0]}_rail{side[1]}" for side in entries}
        rules = ["add table bridge loss", "add chain bridge loss enter { type filter hook prerouting priority 0; }"]
        rules.append(f"add rule bridge loss enter {SPARED} accept")
        for side, entry in entries.items():
            for kind, match in KINDS.items():
                counter = f"{self._names[side]}_{kind}"
                rules.append(f"add counter bridge loss {counter}")
                chance = f"numgen random mod {OUT_OF} < {round(percent / 100 * OUT_OF)}"
                rules.append(f"add rule bridge loss enter iifname {entry} {match} {chance} counter name {counter} drop")
        run_command(*self._prefix, "\n".join(rules))

    def drops(self) -> dict[Side, Drops]:
        """So far, by who sent the frames."""
        command = [*self._prefix, "-j", "list", "counters", "table", "bridge", "loss"]
        listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["nftables"]
        counters = [entry["counter"] for entry in listed if "counter" in entry]
        frames = {counter["name"]: int(counter["packets"]) for counter in counters}
        return {side: Drops(**{kind: frames[f"{name}_{kind}"] for kind in KINDS}) for side, name in self._names.items()}


class Delay:
    """Has each frame wait before it enters a switch, while in use.

    What arrives at a port is redirected to a TAP interface, of which a process holds the other end; what it writes back
    enters the switch. Towards the host, the switch must not send by the TAP interface: so it learns no addresses from
    it, and is told where each one is.
    """

    def __init__(self, network: Network, microseconds: int) -> None:
        self._network, self._microseconds = network, microseconds
        self._names = {
            (host, rail): f"relay{host}-{rail}" for host in range(network.hosts) for rail in range(network.rails)
        }

    def entries(self) -> Mapping[Side, str]:
        """The interface of the switch by which each host's frames enter it."""
        return self._names

    def counts(self) -> dict[Side, RelayCounts]:
        """So far, by who sent the frames."""
        found = json.loads(self._ask())
        counts = {side: RelayCounts(**found[name]) for side, name in self._names.items()}
        for side, name in self._names.items():
            counts[side].dropped += _interface_facts(self._network.switch, name)["stats64"]["tx"]["dropped"]
        return counts

    def __enter__(self) -> Self:
        for name in self._names.values():
            run_command("ip", "-n", self._network.switch, "tuntap", "add", name, "mode", "tap")
        prefix = ["ip", "netns", "exec", self._network.switch, sys.executable, "-I", relay.__file__]
        self._process = subprocess.Popen(
            [*prefix, str(self._microseconds), *self._names.values()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for those who use it
            text=True,
        )
        try:
            self._answer()
            for (host, rail), name in self._names.items():
                self._redirect(host, rail, name)  # now that nothing is dropped
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _redirect(self, host: int, rail: int, name: str) -> None:
        network, switch = self._network, self._network.switch
        port, bridge = network.port(host, rail), network.bridge(host, rail)
        frames = ("mtu", str(network.mtu), "txqueuelen", str(WAITING_FRAMES))
        run_command("ip", "-n", switch, "link", "set", name, *frames, "master", bridge, "up")
        no_flood = ("learning", "off", "flood", "off", "mcast_flood", "off", "bcast_flood", "off")
        run_command("bridge", "-n", switch, "link", "set", "dev", name, *no_flood)
        address = _interface_facts(network.namespace_name(host), f"eth{rail}")["address"]
        run_command("bridge", "-n", switch, "fdb", "replace", address, "dev", port, "master", "static")
        run_command("tc", "-n", switch, "qdisc", "add", "dev", port, "ingress")
        every = ("protocol", "all", "u32", "match", "u32", "0", "0")
        action = ("action", "mirred", "egress", "redirect", "dev", name)
        run_command("tc", "-n", switch, "filter", "add", "dev", port, "ingress", *every, *action)

    def _ask(self) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the relay that delays frames ended with {self._process.wait()}")
        return line


def _interface_facts(namespace: str, interface: str) -> Any:
    command = ["ip", "-n", namespace, "-s", "-j", "link", "show", "dev", interface]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[0]
