"""What NCCL's log says, line by line: versions, the chosen network, and the path of every channel.

Reads INFO and WARN lines of NCCL 2.4 to 2.30 and of the plugin aws-ofi-nccl, of many ranks in any order, whatever a
launcher puts before them. Memory does not grow with the length of the log. What the lines prove is in
`verdict.py`. The grammar was read in the sources of both, tag by tag; RCCL writes the same lines.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from convoy.config.errors import ConfigError
from convoy.network.nccl.causes import cause_in

LONGEST_LINE = 65_536
"""Bytes of a line that are read at once; NCCL's own lines end after 1,024."""

_HEAD = re.compile(
    rb"(?:\d[+-]\d\d:\d\d)?(<[^<>\s]+>|[^\s:<>|\"]+):(\d+):(\d+)"
    rb"(?: \[-?\d+\])? (?:NCCL INFO |(?:(?!NCCL INFO )[^|])*?NCCL WARN )"
)
"""What NCCL writes before a message: host, process, thread, device, and of a warning the function. CloudWatch glues a
time with its zone to the host, and threads on the web have `<hidden>` for a host."""
_CHANNEL = re.compile(
    rb"(?:Channel|Ring) \S+ : (\d+)\S* -> (\d+)\S*(?: \[(send|receive)\])? via "
    rb"(?:NET/([^/]+)/\d+(?:\(\d+\))?(/GDRDMA)?|(P2P|SHM|direct shared memory))"
)
_COMM = re.compile(rb"comm (0x[0-9a-f]+) rank (\d+) n[rR]anks (\d+)")
_COMM_ID = re.compile(rb" commId (0x[0-9a-f]+) - Init ")
_NODES = re.compile(rb" nNodes (\d+)(?:.* MNNVL (\d))?")
_DEVICE = re.compile(rb" cudaDev (\d+)")
_NETWORK = re.compile(rb"Using network (.+?)(?: \[repeated .*)?$")
_VERSION = re.compile(rb"N?R?CCL version ?:? ?(\d+\.\d+\.\d+[^\s\"\\]*)")
_PLUGIN = re.compile(rb"NET/OFI (?:Using|Initializing) aws-ofi-nccl (\S+)")
_PROVIDER = re.compile(rb"NET/OFI Selected [Pp]rovider is ([^\s,]+)(?:, fabric is (\S+))?(?: \(found (\d+) nics\))?")
_PROTOCOL = re.compile(rb"NET/OFI Using transport protocol (\w+)")
_DEVICES = re.compile(rb"NET/(IB\w*|Socket) ?: Using (\[.*)")
_DEVICE_NAME = re.compile(rb"\[\d+\] ?([\w.-]+):")
_HCA = re.compile(rb"NET/(?!Socket).* RDMA (?:Enabled|Disabled) for HCA \d+ '([^']+)'")


@dataclass
class Communicator:
    """One initialisation of one communicator in one rank."""

    rank: int
    ranks: int | None = None
    nodes: int | None = None
    """As NCCL counts them; None before 2.20, which does not say."""
    nvlink_between_nodes: bool = False
    device: int | None = None
    """None: the log does not have the lines that name it."""
    network: str | None = None
    """The name of the network that NCCL chose for it."""
    paths: Counter[str] = field(default_factory=Counter)
    """How many channels take each path: `P2P`, `SHM`, `NET/IB`, `NET/IB/GDRDMA`."""
    name: str | None = None
    """Its id, which all its ranks write; None before NCCL 2.18, which does not."""
    order: int = 0
    """Its place among the initialisations of the whole log."""


@dataclass
class Process:
    """What one process that uses NCCL wrote."""

    host: str
    pid: int
    nccl: str | None = None
    plugin: str | None = None
    provider: str | None = None
    fabric: str | None = None
    protocol: str | None = None
    nics: int | None = None
    devices: set[str] = field(default_factory=set)
    """Names of network devices, such as `mlx5_0` or `rdmap16s27`."""
    causes: dict[str, str] = field(default_factory=dict)
    """By name in `causes.CAUSES`: the first such line."""
    communicators: dict[tuple[int, int | None, int | None], list[Communicator]] = field(default_factory=dict)
    """By rank, ranks and nodes: the last initialisation, and before it the last one before with channels."""
    memberships: dict[str, set[int]] = field(default_factory=dict)
    """Its ranks in each communicator that it ever initialised, by id."""
    network: str | None = None
    says_start: bool = False
    """Whether this NCCL reports the start of an initialisation, as it does since 2.18."""
    opened: dict[tuple[int, int], Communicator] = field(default_factory=dict)
    """Initialisations that have not ended, by thread and rank."""
    networks: dict[int, str] = field(default_factory=dict)
    """Chosen for the initialisation that a thread works on."""

    def being_initialised(self, thread: int, rank: int) -> Communicator | None:
        """The communicator that a thread, or another one on its behalf, is initialising."""
        found = self.opened.get((thread, rank))
        if found is None and self.says_start:
            found = next((c for (_, of_rank), c in self.opened.items() if of_rank == rank), None)
        return found

    def of_channel(self, thread: int, rank: int, order: int) -> Communicator:
        """The communicator whose channel a thread reports; one that connects late, after its end, is the newest."""
        found = self.being_initialised(thread, rank)
        if found is None and self.says_start:
            ended = [kept[-1] for key, kept in self.communicators.items() if key[0] == rank]
            found = max(ended, key=lambda communicator: communicator.order, default=None)
        return found or self.open(thread, rank, order)

    def open(self, thread: int, rank: int, order: int) -> Communicator:
        """Begin an initialisation."""
        communicator = Communicator(rank, network=self.networks.get(thread, self.network), order=order)
        self.opened[thread, rank] = communicator
        return communicator

    def close(self, thread: int, communicator: Communicator) -> None:
        """An initialisation has ended."""
        self.opened = {key: opened for key, opened in self.opened.items() if opened is not communicator}
        self.networks.pop(thread, None)
        key = communicator.rank, communicator.ranks, communicator.nodes
        kept = [earlier for earlier in self.communicators.get(key, []) if earlier.paths]
        self.communicators[key] = [*kept[-1:], communicator]

    def all_communicators(self) -> list[Communicator]:
        """The last initialisations, oldest first, including those that have not ended."""
        ended = [c for kept in self.communicators.values() for c in kept]
        for left in self.opened.values():  # channels for send and receive, which older versions connect on first use
            of_rank = [c for c in ended if c.rank == left.rank]
            if left.ranks is None and of_rank:
                max(of_rank, key=lambda c: c.order).paths.update(left.paths)
            else:
                ended.append(left)
        self.opened.clear()
        return sorted(ended, key=lambda c: c.order)


class NcclLog:
    """Collects what lines say. `feed` them in the order in which each rank wrote them."""

    def __init__(self) -> None:
        self.lines = 0
        """Of NCCL's own, so far."""
        self.processes: dict[tuple[str, int], Process] = {}
        self.versions: set[str] = set()
        """Of NCCL, of lines that name no process."""
        self._writers: dict[bytes, tuple[Process, int]] = {}

    def of_process(self, pid: int) -> "NcclLog":
        """What one process wrote, of a log into which its children write too; all of it if the process wrote none."""
        own = {key: process for key, process in self.processes.items() if process.pid == pid}
        if not own:
            return self
        log = NcclLog()
        log.lines, log.versions, log.processes = self.lines, self.versions, own
        return log

    def feed(self, line: bytes) -> None:
        """One line, with or without its newline."""
        at = line.find(b" NCCL INFO ")
        if at < 0 and (at := line.find(b" NCCL WARN ")) < 0:
            if b"CCL version" in line and (found := _VERSION.search(line)):
                self.lines += 1
                self.versions.add(found[1].decode(errors="replace"))
            return
        at += len(b" NCCL INFO ")
        writer = self._writers.get(line[:at])
        if writer is None or b" NCCL INFO " in line[at:]:  # a line of a line that another one interrupted
            for found, end in _heads(line):
                self._feed(self._writer(found), line[found.end() : end])
        else:
            self._feed(writer, line[at:])

    def _writer(self, head: re.Match[bytes]) -> tuple[Process, int]:
        """The process and thread of what NCCL writes before a message."""
        host, pid, thread = head[1].decode(errors="replace"), int(head[2]), int(head[3])
        if len(self._writers) > 10_000:  # where each line has a time of its own
            self._writers.clear()
        writer = self.processes.setdefault((host, pid), Process(host, pid)), thread
        self._writers[head.string[: head.end()]] = writer
        return writer

    def _feed(self, writer: tuple[Process, int], message: bytes) -> None:
        self.lines += 1
        process, thread = writer
        message = message.rstrip()
        if message.endswith(b"}"):  # a container's log, each line in JSON
            message = message.partition(b'\\n"')[0]
        if message.startswith((b"Channel ", b"Ring ")):
            if found := _CHANNEL.match(message):
                _channel(process, thread, found, self.lines)
        elif found := _COMM.search(message):
            self._communicator(process, thread, message, found)
        else:
            _fact(process, thread, message)

    def _communicator(self, process: Process, thread: int, message: bytes, found: re.Match[bytes]) -> None:
        if b"Init START" in message:
            process.says_start = True
            communicator = process.open(thread, int(found[2]), self.lines)
        elif b"Init COMPLETE" in message or (b" nNodes " in message and found.start() == 0):
            rank = int(found[2])
            communicator = process.being_initialised(thread, rank) or process.open(thread, rank, self.lines)
        else:
            return
        communicator.ranks = int(found[3])
        if nodes := _NODES.search(message):
            communicator.nodes, communicator.nvlink_between_nodes = int(nodes[1]), nodes[2] == b"1"
        # Of a split, the id is not unique in 2.18, nor needed: its ranks also have the communicator that was split.
        if (name := _COMM_ID.search(message)) and b" parent 0x" not in message:
            communicator.name = name[1].decode()
            process.memberships.setdefault(communicator.name, set()).add(communicator.rank)
        if device := _DEVICE.search(message):
            communicator.device = int(device[1])
        if b"Init COMPLETE" in message:
            process.close(thread, communicator)


def _heads(line: bytes) -> Iterator[tuple[re.Match[bytes], int]]:
    """Each message in a line: what stands before it, and where it ends."""
    heads = list(_HEAD.finditer(line))
    return zip(heads, [*(head.start() for head in heads[1:]), len(line)], strict=True)


def _channel(process: Process, thread: int, found: re.Match[bytes], order: int) -> None:
    source, target, direction, network, gdr, local = found.groups()
    communicator = process.of_channel(thread, int(target if direction == b"receive" else source), order)
    if network is None:
        communicator.paths["P2P" if local == b"P2P" else "SHM"] += 1
    else:
        communicator.paths[f"NET/{network.decode(errors='replace')}{'/GDRDMA' if gdr else ''}"] += 1


def _fact(process: Process, thread: int, message: bytes) -> None:
    """A line about the process: what it loaded, chose, found, or failed at."""
    if found := _NETWORK.match(message):
        process.network = process.networks[thread] = found[1].decode(errors="replace")
    elif found := _PROVIDER.match(message):
        process.provider = found[1].decode(errors="replace")
        process.fabric = found[2].decode(errors="replace") if found[2] else None
        process.nics = int(found[3]) if found[3] else process.nics
    elif found := _PLUGIN.match(message):
        process.plugin = found[1].decode(errors="replace")
    elif found := _PROTOCOL.match(message):
        process.protocol = found[1].decode(errors="replace")
    elif found := _DEVICES.match(message):
        names = [name.decode(errors="replace") for name in _DEVICE_NAME.findall(found[2].partition(b"; OOB")[0])]
        process.nics = process.nics if process.provider else len(names)
        if found[1] != b"Socket":
            process.devices.update(names)
    elif found := _VERSION.match(message):
        process.nccl = found[1].decode(errors="replace")
    if found := _HCA.search(message):
        process.devices.add(found[1].decode(errors="replace"))
    if name := cause_in(message):
        process.causes.setdefault(name, message.decode(errors="replace"))


def read_lines(lines: Iterable[bytes]) -> NcclLog:
    """What the lines say, together."""
    log = NcclLog()
    for line in lines:
        log.feed(line)
    return log


def read_files(paths: Sequence[Path]) -> NcclLog:
    """What the files say, together. Raises ConfigError for a file that cannot be read or has no line of NCCL's."""
    log = NcclLog()
    for path in paths:
        before = log.lines
        try:
            for line in lines_of(path):
                log.feed(line)
        except OSError as error:
            raise ConfigError(f"FILE = {path}: {error.strerror}") from None
        if log.lines == before:
            raise ConfigError(f"FILE = {path}: has no line of NCCL; must be the output of ranks with NCCL_DEBUG=INFO")
    return log


def lines_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE):
            yield line
