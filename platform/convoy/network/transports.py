"""Transports between two hosts, measured with iperf3, libfabric's fi_pingpong and perftest's ib_write_bw.

The gang runs the server of a tool on one rank and its client on another, one tool at a time. A tool that is missing, or
that fails, is not measured, for a reason in one line.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from convoy.network.rdma_devices import efa_devices, rdma_devices
from convoy.network.results.fi_pingpong import parse_fi_pingpong
from convoy.network.results.ib_write_bw import parse_ib_write_bw
from convoy.network.results.iperf3 import parse_iperf3

if TYPE_CHECKING:
    from convoy.network.timing import Meeting

Tool = Literal["iperf3", "fi_pingpong", "ib_write_bw"]

APT: dict[Tool, str] = {"iperf3": "iperf3", "fi_pingpong": "libfabric-bin", "ib_write_bw": "perftest"}
"""Debian's package of each tool."""

CONGESTION_CONTROLS = ("cubic", "reno", "bbr")

PROVIDERS = ("tcp", "udp;ofi_rxd", "efa")
"""libfabric's, for reliable datagrams between hosts: over TCP, over UDP with retransmission by libfabric, and EFA's."""

START_SECONDS = 5.0
"""Within which a server must listen, and a client must reach it."""

SWEEP_SECONDS = 5.0
"""Longest sweep over sizes. What a slow transport has not reached by then is left out."""

_EFA_TOOLS = "/opt/amazon/efa/bin"
"""Where the EFA installer puts libfabric's tools; Debian's have no provider `efa`."""

_PINGPONG_ITERATIONS = 100
"""Of each size. With the first message of 64 bytes, the provider tcp takes 15 ms more, which fewer would share."""
_WRITE_ITERATIONS = 200
_LISTENS = "0A"
"""State of a listening socket in /proc/net/tcp."""


class Reading(NamedTuple):
    """What one run of a tool measured."""

    bytes_per_second: float | None = None
    """Payload that arrived; None: a sweep over sizes."""
    seconds_by_size: dict[int, float] = {}
    """Of a message by its bytes: half a round trip of fi_pingpong, or one of many writes in flight of ib_write_bw."""
    counts: dict[str, float] = {}
    """Retransmits of TCP, or packets and lost packets of UDP."""
    times: dict[str, float] = {}
    """TCP's mean round trip, or UDP's jitter, in seconds."""
    stopped: str = ""
    """Why the sweep did not reach its largest size; empty: it did."""


@dataclass(frozen=True)
class Transport:
    """How to run one tool once."""

    tool: Tool
    name: str
    """Of the transport, such as `TCP cubic`, or a provider's or device's name."""
    arguments: tuple[str, ...]
    """Of server and client alike."""
    server: tuple[str, ...]
    """Further arguments; `PORT` stands for the port."""
    client: tuple[str, ...]
    """Further arguments; `ADDRESS` and `PORT` stand for the server's."""
    read: Callable[[str], Reading]
    """Of the client's output. Raises ValueError."""
    seconds: float
    """Deadline of a run."""
    is_sweep: bool = False
    """Whether an output that ends early is still read."""
    why_not: Callable[[], str] = field(default=lambda: "")
    """Reason why this host cannot run it although it has the tool; empty: it can."""


@dataclass(frozen=True)
class TransportResult:
    """One transport's runs, the same on all ranks."""

    tool: Tool
    name: str
    readings: tuple[Reading, ...] = ()
    """By round."""
    not_measured: str = ""
    """Reason in one line; empty: it was measured."""


def tcp(congestion: str, seconds: float) -> Transport:
    """One TCP connection of iperf3 for so long."""

    def why_not() -> str:
        offered = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
        fix = f"modprobe tcp_{congestion}"
        return "" if congestion in offered else f"this kernel offers {', '.join(offered)} and no {congestion}: {fix}"

    def read(text: str) -> Reading:
        used = parse_iperf3(text).congestion
        if used != congestion:
            raise ValueError(f"the connection used {used or 'a congestion control that iperf3 does not report'}")
        return _read_iperf3(text)

    return replace(_iperf3(f"TCP {congestion}", ("--congestion", congestion), seconds, why_not), read=read)


def udp(bits_per_second: float, seconds: float) -> Transport:
    """Datagrams of iperf3 at a rate of payload."""
    arguments = ("--udp", "--bitrate", f"{bits_per_second:.0f}")
    return _iperf3(f"UDP {bits_per_second / 1e6:g} Mbit/s", arguments, seconds, lambda: "")


def _iperf3(name: str, arguments: tuple[str, ...], seconds: float, why_not: Callable[[], str]) -> Transport:
    client = ("--client", "ADDRESS", "--port", "PORT", "--json", "--time", f"{seconds:g}", *arguments,
              "--connect-timeout", f"{1000 * START_SECONDS:.0f}")  # fmt: skip
    server = ("--server", "--one-off", "--port", "PORT")
    return Transport("iperf3", name, (), server, client, _read_iperf3, seconds + 2 * START_SECONDS, why_not=why_not)


def _read_iperf3(text: str) -> Reading:
    report = parse_iperf3(text)
    counts = {"retransmits": report.retransmits, "packets": report.packets, "lost_packets": report.lost_packets}
    times = {"round_trip_seconds": report.round_trip_seconds, "jitter_seconds": report.jitter_seconds}
    return Reading(
        bytes_per_second=report.bytes_per_second,
        counts={name: float(count) for name, count in counts.items() if count is not None},
        times={name: seconds for name, seconds in times.items() if seconds is not None},
    )


def fabric(provider: str) -> Transport:
    """Messages of fi_pingpong over a provider's reliable datagrams, all sizes from 0 bytes to 6 MiB."""
    arguments = ("-p", provider, "-e", "rdm", "-I", str(_PINGPONG_ITERATIONS), "-S", "all")

    def read(text: str) -> Reading:
        rows = parse_fi_pingpong(text)  # the first also makes the connection
        return Reading(seconds_by_size={row.size: row.half_round_trip_seconds for row in rows if row.size > 0})

    def why_not() -> str:
        return "no EFA device" if provider == "efa" and not efa_devices() else ""

    return Transport("fi_pingpong", provider, arguments, ("-B", "PORT"), ("-P", "PORT", "ADDRESS"), read,
                     SWEEP_SECONDS, is_sweep=True, why_not=why_not)  # fmt: skip


def rdma_write(device: str | None) -> Transport:
    """RDMA writes of ib_write_bw over a device, all sizes from 2 bytes to 8 MiB; None: the first device."""
    names = rdma_devices()
    arguments: tuple[str, ...] = ("-F", "--report_gbits", "-a", "-n", str(_WRITE_ITERATIONS), "-p", "PORT")
    arguments += ("-d", device) if device else ()

    def read(text: str) -> Reading:
        rows = parse_ib_write_bw(text)
        return Reading(seconds_by_size={row.size: row.size / row.bytes_per_second for row in rows})

    def why_not() -> str:
        if not names:
            return "no RDMA device"
        return "" if device is None or device in names else f"no RDMA device {device}: there are {', '.join(names)}"

    return Transport("ib_write_bw", device or "RDMA", arguments, (), ("ADDRESS",), read, SWEEP_SECONDS,
                     is_sweep=True, why_not=why_not)  # fmt: skip


def usual_transports(seconds: float, udp_bits_per_second: float | None) -> list[Transport]:
    """All that the network suite measures. seconds: of each run of iperf3. udp_bits_per_second: None: no UDP."""
    return [
        *(tcp(congestion, seconds) for congestion in CONGESTION_CONTROLS),
        *([] if udp_bits_per_second is None else [udp(udp_bits_per_second, seconds)]),
        *(fabric(provider) for provider in PROVIDERS),
        rdma_write(None),
    ]


def measure_transports(
    transports: Sequence[Transport],
    meeting: "Meeting",
    *,
    server: int,
    client: int,
    address: str,
    rounds: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> list[TransportResult]:
    """Each transport from the client's rank to the server's, in turns. All ranks call it alike, and get the same.

    address: of this rank's host in the network that is to be measured. progress: called after each run.
    """
    takes_part = meeting.rank in (server, client)
    reasons: list[Any] = meeting.gather([_why_not(each) if takes_part else "" for each in transports])
    addresses: list[Any] = meeting.gather(address)
    results = [
        TransportResult(each.tool, each.name, not_measured=reasons[client][at] or reasons[server][at])
        for at, each in enumerate(transports)
    ]
    places = range(len(transports))
    for number in range(rounds):
        for at in places if number % 2 == 0 else reversed(places):
            if not results[at].not_measured:
                outcome = _run(transports[at], meeting, server, client, str(addresses[server]))
                results[at] = _with(results[at], outcome)
                progress()
    return results


def _with(result: TransportResult, outcome: Reading | str) -> TransportResult:
    if isinstance(outcome, str):  # what a tool measured before it failed is not shown as if it had not
        return replace(result, readings=(), not_measured=outcome)
    return replace(result, readings=(*result.readings, outcome))


def _why_not(transport: Transport) -> str:
    if _find(transport.tool) is None:
        return f"{transport.tool} is not installed: apt-get install {APT[transport.tool]}"
    return transport.why_not()


def _find(tool: Tool) -> str | None:
    return shutil.which(tool, path=os.pathsep.join([_EFA_TOOLS, os.environ.get("PATH", os.defpath)]))


def _run(transport: Transport, meeting: "Meeting", server: int, client: int, address: str) -> Reading | str:
    """One run, on all ranks; what it measured, or why it failed."""
    with contextlib.ExitStack() as running:
        port, why = 0, ""
        if meeting.rank == server:
            port = _free_port()
            process = running.enter_context(_started(transport, transport.server, address, port))
            why = _why_not_listening(process, port)
        ports: list[Any] = meeting.gather((port, why))
        port, why = ports[server]
        if why:
            return f"{transport.tool} on rank {server}: {why}"
        outcome: Reading | str = ""
        if meeting.rank == client:
            with _started(transport, transport.client, address, port) as own:
                outcome = _outcome(transport, own)
        outcomes: list[Any] = meeting.gather(outcome)
        found: Reading | str = outcomes[client]
        if not isinstance(found, str):
            return found
        said: list[Any] = meeting.gather(_end_of_server(process) if meeting.rank == server else "")
        return f"{transport.tool} on rank {client}: {found}" + (
            f"; on rank {server}: {said[server]}" if said[server] else ""
        )


def _end_of_server(process: "subprocess.Popen[str]") -> str:
    """Why a server failed, as far as it did; empty: it still waits, or has ended well."""
    try:
        output, errors = process.communicate(timeout=1.0)
    except subprocess.TimeoutExpired:
        return ""
    return (_last_line(errors) or _last_line(output)) if process.returncode else ""


@contextlib.contextmanager
def _started(
    transport: Transport, arguments: Sequence[str], address: str, port: int
) -> "Iterator[subprocess.Popen[str]]":
    """A tool at work, which is ended with the context. Its lines come as they are printed, not in whole buffers."""
    values = {"ADDRESS": address, "PORT": str(port)}
    words = [values.get(word, word) for word in (*transport.arguments, *arguments)]
    process = subprocess.Popen(
        ["stdbuf", "-oL", str(_find(transport.tool)), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _outcome(transport: Transport, process: "subprocess.Popen[str]") -> Reading | str:
    stopped = ""
    try:
        output, errors = process.communicate(timeout=transport.seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        stopped = f"did not finish within {transport.seconds:g} s"
        if not transport.is_sweep:
            return stopped
    if process.returncode and not stopped:
        stopped = _last_line(errors) or f"exited with code {process.returncode}"
    try:
        return transport.read(output)._replace(stopped=stopped)
    except ValueError as error:
        return stopped if transport.is_sweep and stopped else str(error)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return " ".join(lines[-1].split()) if lines else ""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def _why_not_listening(process: "subprocess.Popen[str]", port: int) -> str:
    """Wait until a server listens; returns why it does not. A test connection would count as its only client."""
    deadline = time.monotonic() + START_SECONDS
    while not _is_listening(port):
        if process.poll() is not None:
            output, errors = process.communicate()
            return _last_line(errors) or _last_line(output) or f"exited with code {process.returncode}"
        if time.monotonic() > deadline:
            return f"did not listen within {START_SECONDS:g} s"
        time.sleep(0.01)
    return ""


def _is_listening(port: int) -> bool:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                _, local, _, state = line.split()[:4]
                if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                    return True
    return False
