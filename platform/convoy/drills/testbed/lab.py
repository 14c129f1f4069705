"""A lab: hosts in namespaces of this one, on links of known rate, loss and delay. Needs root, and Debian's iproute2
and, for loss, nftables.

Rates are set by tbf, loss by nftables, whose counters are the truth on what was dropped, delay by a relay of our own.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from convoy.config.errors import ConfigError
from convoy.drills.testbed.lab_spec import LabSpec
from convoy.drills.testbed.mounts import run_command
from convoy.drills.testbed.namespaces import Network
from convoy.drills.testbed.relay import Relay, RelayCounts, open_tap

MTU = 1500

DELAYED_MTU = 9001
"""The relay handles each frame by itself, so that it carries more in large ones."""

BURST_SECONDS = 0.0025
"""What a link may send at once after it had nothing to send. Less than the largest packet that TCP hands down whole,
64 KiB, would have tbf cut it up, or drop it."""

LEAST_BURST = 2**17

QUEUE_BYTES = 2**22
"""Of a link: enough that it does not drop what one collective has on its way."""

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")

POLL_SECONDS = 0.02


class _LabNetwork(Network):
    """A network whose hosts may be connected by links with a delay."""

    relay: Relay | None = None

    def make_link(self, host: int, rail: int) -> None:
        if self.relay is None:
            super().make_link(host, rail)
            return
        ends = ((self.namespace_name(host), f"eth{rail}"), (self.switch, self.port(host, rail)))
        self.relay.add_link(*(open_tap(*end, self.mtu) for end in ends))


class Lab:
    """The hosts of a specification, while in use."""

    def __init__(self, spec: LabSpec) -> None:
        """Raises ConfigError if this host cannot make one."""
        _check_host(spec)
        self.spec = spec
        mtu = DELAYED_MTU if spec.delay_ms else MTU
        self._network = _LabNetwork(spec.hosts, mtu, spec.rails, trunk=spec.trunk_megabits is not None)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            if self.spec.congestion not in (None, *ALLOWED.read_text().split()):
                stack.enter_context(_allowed(str(self.spec.congestion)))
            if self.spec.delay_ms:
                self._network.relay = Relay(self.spec.delay_ms / 1000)
            stack.enter_context(self._network)
            if self._network.relay is not None:
                stack.enter_context(self._network.relay)
            self._set_links()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def addresses(self) -> list[str]:
        """Of each host, on the first rail."""
        return self._network.addresses

    def addresses_on(self, rail: int) -> list[str]:
        """Of each host, on a rail, whose interface is `eth{rail}`."""
        return self._network.addresses_on(rail)

    def command_prefix(self, host: int) -> Sequence[str]:
        """Of the command line of what runs on the host."""
        return self._network.command_prefix(host)

    def drops(self) -> list[int]:
        """Packets of each host that were lost on purpose, so far, on all rails."""
        if not self.spec.loss_percent:
            return [0] * self.spec.hosts
        listed = subprocess.run(
            ["ip", "netns", "exec", self._network.switch, "nft", "list", "table", "bridge", "lab"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        dropped = [0] * self.spec.hosts
        for host, packets in re.findall(r'iifname "port(\d+)(?:-\d+)?".*?counter packets (\d+)', listed):
            dropped[int(host)] += int(packets)
        return dropped

    def relay_counts(self) -> list[RelayCounts]:
        """Frames of each host's link, on the first rail and then on the others; empty: nothing is delayed."""
        return [] if self._network.relay is None else self._network.relay.counts()

    def run_on_hosts(
        self, command: Sequence[str], environments: Sequence[Mapping[str, str]], say: Callable[[str], None]
    ) -> list[str]:
        """Run the command on every host, each in its environment, and wait for all. Once one fails, the others are
        killed. say: receives the lines of the first host's standard output. Returns what failed, a line for the host
        that failed first; empty: nothing."""
        with tempfile.TemporaryDirectory(prefix="convoy-lab-") as folder, contextlib.ExitStack() as stack:
            outputs = [Path(folder) / f"{host}.txt" for host in range(self.spec.hosts)]
            processes = []
            for host, environment in enumerate(environments):
                output = stack.enter_context(outputs[host].open("wb"))
                started = subprocess.Popen(
                    [*self.command_prefix(host), *command], env=dict(environment), stdout=output, stderr=output
                )
                stack.callback(_end, started)
                processes.append(started)
            codes: list[int | None] = [None]
            while None in codes and not any(codes):
                time.sleep(POLL_SECONDS)
                codes = [process.poll() for process in processes]
            failed = next(((host, code) for host, code in enumerate(codes) if code), None)
            for line in outputs[0].read_text(errors="replace").splitlines():
                say(line)
            return [] if failed is None else [_failure(*failed, outputs[failed[0]].read_text(errors="replace"))]

    def _set_links(self) -> None:
        spec, network = self.spec, self._network
        for host in range(spec.hosts):
            name = network.namespace_name(host)
            control = f"net.ipv4.tcp_congestion_control={spec.congestion or 'reno'}"
            run_command("ip", "netns", "exec", name, "sysctl", "-qw", control)
            slow = {each.direction: each.megabits for each in spec.slow if each.host == host}
            for rail in range(spec.rails):
                _limit(name, f"eth{rail}", slow.get("sends", spec.megabits))
                _limit(network.switch, network.port(host, rail), slow.get("receives", spec.megabits))
        for end in ("trunk0", "trunk1") if spec.trunk_megabits is not None else ():
            _limit(network.switch, end, spec.trunk_megabits)
        if spec.loss_percent:
            self._lose()

    def _lose(self) -> None:
        """Have the switch drop packets of each port at random, and count them. A packet is then no larger than a
        frame: of one that is cut later, 64 KiB would be lost at once."""
        network, ports = self._network, []
        for host in range(self.spec.hosts):
            for rail in range(self.spec.rails):
                run_command("ip", "-n", network.namespace_name(host), "link", "set", f"eth{rail}", "gso_max_segs", "1")
                ports.append(network.port(host, rail))
        out_of = 100_000
        lost = round(self.spec.loss_percent * out_of / 100)
        dropped = f"ether type ip numgen random mod {out_of} < {lost} counter drop"
        script = "add table bridge lab\nadd chain bridge lab forward { type filter hook forward priority 0; }\n"
        script += "".join(f'add rule bridge lab forward iifname "{port}" {dropped}\n' for port in ports)
        command = ["ip", "netns", "exec", network.switch, "nft", "-f", "-"]
        done = subprocess.run(command, input=script, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"nft: {done.stderr.strip()}")


def _limit(namespace: str, device: str, megabits: float | None) -> None:
    """Have a device send no more than this."""
    if megabits is None:
        return
    burst = max(LEAST_BURST, round(megabits * 1e6 / 8 * BURST_SECONDS))
    shape = ("rate", f"{megabits:.15g}mbit", "burst", str(burst), "limit", str(QUEUE_BYTES))
    run_command("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *shape)


@contextlib.contextmanager
def _allowed(congestion: str) -> Iterator[None]:
    """Allow namespaces a congestion control, which only this host's administrator can, until it is no longer used."""
    before = ALLOWED.read_text()
    ALLOWED.write_text(f"{before.strip()} {congestion}")
    try:
        yield
    finally:
        ALLOWED.write_text(before)


def _check_host(spec: LabSpec) -> None:
    if os.geteuid():
        raise ConfigError("--lab: needs root, for network namespaces; run it with sudo, or without --lab on real hosts")
    packages = {"ip": "iproute2", "tc": "iproute2", **({"nft": "nftables"} if spec.loss_percent else {})}
    missing = sorted({package for command, package in packages.items() if shutil.which(command) is None})
    if missing:
        raise ConfigError(f"--lab: needs {' and '.join(missing)}; apt-get install {' '.join(missing)}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def _failure(host: int, code: int, output: str) -> str:
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")
    return f"host {host} ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}: {last.strip()}"
