"""A lab: hosts in namespaces of this one, on links of known rate, loss and delay. Needs root, and Debian's iproute2
and, for loss, nftables.

Rates are set by tbf, loss by nftables, whose counters are the truth on what was dropped, delay by a relay of our own.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Self

from convoy.config.errors import ConfigError, PrerequisiteMissing
from convoy.drills.testbed.host_runs import HostCommand, HostRun, run_on_hosts
from convoy.drills.testbed.lab_faults import Delay, Drops, Loss, Side
from convoy.drills.testbed.lab_spec import LabSpec
from convoy.drills.testbed.mounts import run_command
from convoy.drills.testbed.namespaces import Network, namespace_processes
from convoy.drills.testbed.relay import RelayCounts

MTU = 9001
"""As on EC2: of smaller frames there are so many that to handle them is itself a part of the time."""

FRAME_BYTES = MTU + 14
"""With the header of Ethernet, as the queueing discipline counts it."""

CARRIED = (MTU - 52) / FRAME_BYTES
"""Share of a full frame that is a TCP message: the headers of IP, and TCP with its timestamps are 20 and 32 bytes."""

BURST_SECONDS = 250e-6
"""For how long a link that had nothing to send then sends at once. Measured by iperf3 on links of 1 Gbit/s: with a
burst of one frame, timers that are late lose 13 % of the rate; with two, 2 %. With bursts of 128 KiB, a message of that
size went over 400 Mbit/s at 3,700, and one of 1 MiB at 431."""

QUEUE_SECONDS = 0.1
"""How long a frame waits in a port at most, before there is no room and it is dropped."""

QUEUE_FRAMES = 32
"""Room of the slowest ports."""

TCP_SETTINGS = Path("/proc/sys/net/ipv4")


class Lab:
    """The hosts of a specification, while in use. Several labs may be in use at once."""

    def __init__(self, spec: LabSpec) -> None:
        """Raises ConfigError if this host cannot make one."""
        _check_host(spec)
        self.spec = spec
        self._network = Network(spec.hosts, MTU, spec.rails, trunk=spec.trunk_megabits is not None)
        self._loss: Loss | None = None
        self._delay: Delay | None = None
        self._stack = contextlib.ExitStack()

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

    def drops(self) -> dict[Side, Drops]:
        """IP frames that were lost on purpose so far, by the host that sent them and the rail; empty without loss."""
        return self._loss.drops() if self._loss else {}

    def relay_counts(self) -> dict[Side, RelayCounts]:
        """What was delayed so far, by the host that sent it and the rail; empty without delay."""
        return self._delay.counts() if self._delay else {}

    def run_on_hosts(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        say: Callable[[str], None],
        timeout_seconds: float | None = None,
    ) -> list[str]:
        """Run the command on every host, each in its environment, and wait for all. Once one fails, or there is no time
        left, the others are killed. say: receives the lines of the first host's standard output. Returns what failed, a
        line for each host that did; empty: nothing."""
        on_hosts = enumerate(environments)
        commands = [HostCommand(self.command_prefix(host), command, environment) for host, environment in on_hosts]
        runs = run_on_hosts(commands, timeout_seconds, say)
        failed = [_failure(host, run) for host, run in enumerate(runs) if run.returncode and not run.killed]
        return failed or [f"host {host} did not end in time" for host, run in enumerate(runs) if run.killed]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_ended_by_sigterm())
            try:
                stack.enter_context(self._network)
                stack.callback(self._kill_processes)
                self._set_up(stack)
            except RuntimeError as error:
                raise ConfigError(f"--lab: this host cannot make it: {error}") from None
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _set_up(self, stack: contextlib.ExitStack) -> None:
        spec, network = self.spec, self._network
        for host in range(spec.hosts):
            name = network.namespace_name(host)
            self._set_tcp(name)
            for rail in range(spec.rails):
                _limit(name, f"eth{rail}", spec.megabits_of(host, "sends"))
                _limit(network.switch, network.port(host, rail), spec.megabits_of(host, "receives"))
        for rail in range(spec.rails):
            for end in network.trunk_ends(rail):
                _limit(network.switch, end, spec.trunk_megabits)
        entries: Mapping[Side, str]
        entries = {(host, rail): network.port(host, rail) for host in range(spec.hosts) for rail in range(spec.rails)}
        if spec.delay_ms:
            self._delay = stack.enter_context(Delay(network, round(spec.delay_ms * 1000)))
            entries = self._delay.entries()
        if spec.loss_percent:
            self._loss = Loss(network, spec.loss_percent, entries)

    def _set_tcp(self, namespace: str) -> None:
        """What a connection learns is kept for the next one to the same host, unless `tcp_no_metrics_save`: after a
        run with losses, the next would start slowly."""
        with _allowed(self.spec.congestion):
            for name, value in (("tcp_congestion_control", self.spec.congestion), ("tcp_no_metrics_save", 1)):
                run_command("ip", "netns", "exec", namespace, "sh", "-c", f"echo {value} > {TCP_SETTINGS / name}")

    def _kill_processes(self) -> None:
        """A namespace without a name stays for as long as a process is in it."""
        for host in range(self.spec.hosts):
            for process in namespace_processes(self._network.namespace_name(host)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def burst_bytes(megabits: float) -> int:
    """That a port sends at once after it had nothing to send: the time of a message is shorter by theirs."""
    return max(2 * FRAME_BYTES, round(megabits * 1e6 / 8 * BURST_SECONDS))


def _limit(namespace: str, interface: str, megabits: float | None) -> None:
    """Have an interface send no more than this. Frames stay apart on their way through the kernel (`gso_max_segs`),
    or 64 KiB would be lost, or sent, at once."""
    run_command("ip", "-n", namespace, "link", "set", interface, "gso_max_segs", "1")
    if megabits is None:
        return
    room = max(round(megabits * 1e6 / 8 * QUEUE_SECONDS), QUEUE_FRAMES * FRAME_BYTES)
    shape = ("rate", f"{megabits:.15g}mbit", "burst", str(burst_bytes(megabits)), "limit", str(room))
    run_command("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", "tbf", *shape)


def _check_host(spec: LabSpec) -> None:
    if os.geteuid():
        raise PrerequisiteMissing(
            "--lab: needs root, for network namespaces; run it with sudo, or without --lab on real hosts"
        )
    packages = {"ip": "iproute2", "tc": "iproute2", **({"nft": "nftables"} if spec.loss_percent else {})}
    missing = sorted({package for command, package in packages.items() if shutil.which(command) is None})
    if missing:
        raise PrerequisiteMissing(f"--lab: needs {' and '.join(missing)}; apt-get install {' '.join(missing)}")
    available = _read_setting("tcp_available_congestion_control").split()
    if spec.congestion not in available:
        raise PrerequisiteMissing(
            f"--lab: {spec.congestion}: this kernel has {', '.join(available)}; modprobe tcp_{spec.congestion}"
        )


def _read_setting(name: str) -> str:
    return (TCP_SETTINGS / name).read_text()


@contextlib.contextmanager
def _allowed(congestion: str) -> Iterator[None]:
    """A namespace may only be given a congestion control that everybody may use on this host. Meanwhile, this one is.
    No other lab changes the setting at the same time."""
    setting = TCP_SETTINGS / "tcp_allowed_congestion_control"
    with setting.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = file.read()
        if congestion in before.split():
            yield
            return
        try:
            setting.write_text(f"{before.strip()} {congestion}")
        except OSError as error:
            raise PrerequisiteMissing(f"--lab: {congestion}: {setting} cannot be written: {error.strerror}") from None
        try:
            yield
        finally:
            setting.write_text(before)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends this process as an exception does, so that nothing of the lab is left."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _failure(host: int, run: HostRun) -> str:
    code = run.returncode
    written = (run.output + run.errors).splitlines()
    last = next((line for line in reversed(written) if line.strip()), "it printed nothing")
    return f"host {host} ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}: {last.strip()}"
