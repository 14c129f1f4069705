"""A network of hosts in this one: namespaces on a switch that can be cut off. Needs root, and Debian's iproute2."""

import contextlib
import subprocess
import uuid
from collections.abc import Sequence
from typing import Self

from convoy.drills.testbed.mounts import run_command


class Network:
    """Hosts that reach each other, while in use. Each has an interface `eth0` on a port of the switch, and one more on
    a port of each further rail."""

    def __init__(self, hosts: int, mtu: int = 1500, rails: int = 1, *, trunk: bool = False) -> None:
        """mtu: bytes of a frame's payload, as on EC2 up to 9001. rails: networks that do not reach each other. trunk:
        on each rail the second half of the hosts is on a switch of its own, with a link between the two."""
        self.hosts, self.rails, self.mtu = hosts, rails, mtu
        self._trunk = trunk
        self._id = uuid.uuid4().hex[:8]
        self.switch = f"convoy-{self._id}-switch"
        """Name of the namespace in which the switches are."""

    @property
    def addresses(self) -> list[str]:
        """Of each host, on the first rail."""
        return self.addresses_on(0)

    def addresses_on(self, rail: int) -> list[str]:
        """Of each host, on a rail."""
        return [f"10.77.{rail}.{host + 1}" for host in range(self.hosts)]

    def command_prefix(self, host: int) -> Sequence[str]:
        """Of the command line of what runs on the host."""
        return ["ip", "netns", "exec", self.namespace_name(host)]

    def unplug(self, host: int) -> None:
        """Nothing reaches the host any more on the first rail, or leaves it; no connection is closed."""
        self._run_on_switch("link", "set", self.port(host), "nomaster")

    def plug(self, host: int) -> None:
        self._run_on_switch("link", "set", self.port(host), "master", self.bridge(host, 0))

    def port(self, host: int, rail: int = 0) -> str:
        """Name of a host's port, in the namespace of the switches."""
        return f"port{host}" if rail == 0 else f"port{host}-{rail}"

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def trunk_ends(self, rail: int) -> list[str]:
        """Of the link between the rail's two switches; none: there is one switch."""
        return [f"trunk{rail}-{half}" for half in range(2)] if self._trunk else []

    def bridge(self, host: int, rail: int) -> str:
        """Name of the switch that the host is on."""
        return f"bridge{rail}-{int(self._trunk and host >= self.hosts // 2)}"

    def _make(self) -> None:
        run_command("ip", "netns", "add", self.switch)
        for rail in range(self.rails):
            self._make_switches(rail)
        for host in range(self.hosts):
            run_command("ip", "netns", "add", self.namespace_name(host))
            run_command("ip", "-n", self.namespace_name(host), "link", "set", "lo", "up")
            for rail in range(self.rails):
                self._connect(host, rail)

    def _make_switches(self, rail: int) -> None:
        for bridge in dict.fromkeys(self.bridge(host, rail) for host in range(self.hosts)):
            self._run_on_switch("link", "add", bridge, "type", "bridge")
            self._run_on_switch("link", "set", bridge, "up")
        if ends := self.trunk_ends(rail):
            frames, peer = ("mtu", str(self.mtu)), ("peer", "name", ends[1])
            self._run_on_switch("link", "add", ends[0], *frames, "type", "veth", *peer, *frames)
            for end, host in zip(ends, (0, self.hosts - 1), strict=True):
                self._run_on_switch("link", "set", end, "master", self.bridge(host, rail), "up")

    def _connect(self, host: int, rail: int) -> None:
        name, address = self.namespace_name(host), self.addresses_on(rail)[host]
        frames, peer = ("mtu", str(self.mtu)), ("peer", "name", f"eth{rail}")
        port = self.port(host, rail)
        self._run_on_switch("link", "add", port, *frames, "type", "veth", *peer, *frames, "netns", name)
        self._run_on_switch("link", "set", port, "master", self.bridge(host, rail), "up")
        run_command("ip", "-n", name, "addr", "add", f"{address}/24", "dev", f"eth{rail}")
        run_command("ip", "-n", name, "link", "set", f"eth{rail}", "up")

    def _remove(self) -> None:
        for name in (*map(self.namespace_name, range(self.hosts)), self.switch):
            with contextlib.suppress(RuntimeError):  # it was never made
                run_command("ip", "netns", "delete", name)

    def namespace_name(self, host: int) -> str:
        return f"convoy-{self._id}-{host}"

    def _run_on_switch(self, *arguments: str) -> None:
        run_command("ip", "-n", self.switch, *arguments)


def namespace_processes(name: str) -> list[int]:
    """The ids of the processes in a network namespace."""
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]
