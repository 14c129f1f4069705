"""A network of hosts in this one: namespaces on a switch that can be cut off. Needs root, and Debian's iproute2."""

import contextlib
import uuid
from collections.abc import Sequence
from typing import Self

from convoy.drills.testbed.mounts import run_command


class Network:
    """Hosts that reach each other, while in use."""

    def __init__(self, hosts: int, mtu: int = 1500) -> None:
        """mtu: bytes of a frame's payload, as on EC2 up to 9001."""
        self.addresses = [f"10.77.0.{host + 1}" for host in range(hosts)]
        self._mtu = mtu
        self._id = uuid.uuid4().hex[:8]
        self._switch = f"convoy-{self._id}-switch"

    def command_prefix(self, host: int) -> Sequence[str]:
        """Of the command line of what runs on the host."""
        return ["ip", "netns", "exec", self.namespace_name(host)]

    def unplug(self, host: int) -> None:
        """Nothing reaches the host any more, or leaves it; no connection is closed."""
        self._run_on_switch("link", "set", f"port{host}", "nomaster")

    def plug(self, host: int) -> None:
        self._run_on_switch("link", "set", f"port{host}", "master", "bridge")

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _make(self) -> None:
        run_command("ip", "netns", "add", self._switch)
        self._run_on_switch("link", "add", "bridge", "type", "bridge")
        self._run_on_switch("link", "set", "bridge", "up")
        for host, address in enumerate(self.addresses):
            name, port = self.namespace_name(host), f"port{host}"
            run_command("ip", "netns", "add", name)
            frames = ("mtu", str(self._mtu))
            self._run_on_switch(
                "link", "add", port, *frames, "type", "veth", "peer", "name", "eth0", *frames, "netns", name
            )
            self._run_on_switch("link", "set", port, "master", "bridge", "up")
            run_command("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            run_command("ip", "-n", name, "link", "set", "lo", "up")
            run_command("ip", "-n", name, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for name in (*map(self.namespace_name, range(len(self.addresses))), self._switch):
            with contextlib.suppress(RuntimeError):  # it was never made
                run_command("ip", "netns", "delete", name)

    def namespace_name(self, host: int) -> str:
        return f"convoy-{self._id}-{host}"

    def _run_on_switch(self, *arguments: str) -> None:
        run_command("ip", "-n", self._switch, *arguments)
