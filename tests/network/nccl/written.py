"""Logs of NCCL as each version writes them: format strings of its sources, filled in for a job of some ranks."""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Lines = list[str]


@dataclass(frozen=True)
class Version:
    """How one version of NCCL words what Convoy reads. Sources: src/init.cc, src/transport, src/net.cc of its tag."""

    name: str
    channel: str
    """`{c}` channel, `{s}` source, `{t}` target, `{way}`, `{net}`, `{gdr}`."""
    inside: tuple[str, ...]
    """Paths of channels in a node."""
    chosen: bool = True
    """Whether `Using network` is printed, as since 2.7."""
    start: bool = False
    """Whether `Init START` is printed, as since 2.18."""
    nodes: bool = False
    """Whether the number of nodes is printed, as since 2.20."""
    function: str = ""
    """Before the lines of a communicator: what initialised it."""
    no_plugin: str = "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation"
    process: bool = False
    """Whether the version's line names its process, as since 2.27."""


_OLD = "Ring {c:02d} : {s} -> {t} [{way}] via NET/{net}/0{gdr}"
_BUS = "Channel {c:02d} : {s}[{s}01c0] -> {t}[{t}01c0] [{way}] via NET/{net}/0{gdr}"
_CONNECTION = "Channel {c:02d}/0 : {s}[{s}01c0] -> {t}[{t}01c0] [{way}] via NET/{net}/0{gdr}/Shared"
_DEVICE = "Channel {c:02d}/0 : {s}[0] -> {t}[1] [{way}] via NET/{net}/0{gdr}"
_PROXY = "Channel {c:02d}/0 : {s}[0] -> {t}[1] [{way}] via NET/{net}/2(0){gdr}"

VERSIONS: Mapping[str, Version] = {
    version.name: version
    for version in (
        Version("2.4.8", _OLD, ("P2P/IPC", "direct shared memory"), chosen=False,
                no_plugin="NET/Plugin : No plugin found (libnccl-net.so)."),
        Version("2.7.8", _BUS, ("P2P/IPC/read", "direct shared memory")),
        Version("2.12.12", _CONNECTION, ("P2P/IPC", "direct shared memory")),
        Version("2.18.3", _CONNECTION, ("P2P/IPC/read", "SHM/direct/direct"), start=True,
                no_plugin="NET/Plugin : No plugin found, using internal implementation"),
        Version("2.21.5", _DEVICE, ("P2P/CUMEM/read", "SHM/direct/direct"), start=True, nodes=True,
                no_plugin="NET/Plugin: No plugin found (libnccl-net.so)"),
        Version("2.24.3", _PROXY, ("P2P/CUMEM", "SHM/direct/direct"), start=True, nodes=True,
                function="ncclCommInitRankConfig ", no_plugin="NET/Plugin: Could not find: libnccl-net.so. "),
        Version("2.27.7", _PROXY, ("P2P/CUMEM/read", "SHM/direct/direct"), start=True, nodes=True, process=True,
                function="ncclCommInitRankConfig ", no_plugin="NET/Plugin: Could not find: libnccl-net.so. "),
        Version("2.30.4", _DEVICE, ("P2P/CUMEM/read", "SHM/direct/direct"), start=True, nodes=True, process=True,
                function="[Rank 0] ncclCommInitRankConfig ", no_plugin="NET/Plugin: Could not find: libnccl-net.so"),
    )
}  # fmt: skip

Carrier = Literal["efa+gdr", "efa", "ib+gdr", "socket", "libfabric tcp", "silent"]


@dataclass(frozen=True)
class Job:
    """A run to write the log of: `ranks` ranks, `per_host` on each host, in one ring with one channel."""

    version: Version = VERSIONS["2.27.7"]
    carrier: Carrier = "efa+gdr"
    ranks: int = 4
    per_host: int = 2
    host: str = "node-{}"
    first_pid: int = 100

    def with_carrier(self, carrier: Carrier) -> "Job":
        return replace(self, carrier=carrier)

    def rank_lines(self, rank: int) -> Lines:
        """What a rank writes from its start to the end of its first initialisation."""
        own, write = self.version, self.writer(rank)
        lines = [write(f"NCCL version {own.name}+cuda12.4")] if own.process else []
        if rank == 0 and not own.process:
            lines.append(f"NCCL version {own.name}+cuda12.4")
        lines += [write("NCCL_DEBUG set by environment to INFO"), *map(write, self._network_lines())]
        return [*lines, *self.communicator_lines(rank)]

    def communicator_lines(self, rank: int, pointer: str = "0x7f01", name: str = "") -> Lines:
        """One initialisation of the communicator of all ranks. name: its id, by default one of this run alone."""
        name = name or f"0x{zlib.crc32(f'{self.host} {self.first_pid} {pointer}'.encode()):x}"
        own, write, nodes = self.version, self.writer(rank), -(-self.ranks // self.per_host)
        comm = f"{own.function}comm {pointer} rank {rank} nranks {self.ranks} cudaDev {rank % self.per_host}"
        messages = [f"Using network {self.network}"] if own.chosen else []
        if own.start:
            messages.append(f"{comm} nvmlDev 0 busId 1c0 commId {name} - Init START")
        if own.nodes:
            local = f"localRanks {self.per_host} localRank {rank % self.per_host} MNNVL 0"
            messages.append(f"comm {pointer} rank {rank} nRanks {self.ranks} nNodes {nodes} {local}")
        messages += [
            "Channel 00/02 :    0   1   2   3",
            "Trees [0] 1/-1/-1->0->-1",
            *self._channels(rank),
            "Connected all rings",
            f"{comm} busId 1c0 - Init COMPLETE",
        ]
        return [write(message) for message in messages]

    @property
    def network(self) -> str:
        """As `Using network` names it."""
        return {"ib+gdr": "IB", "socket": "Socket"}.get(self.carrier, "AWS Libfabric")

    def writer(self, rank: int) -> Callable[[str], str]:
        """Puts before a message what NCCL writes there."""
        host, device = self.host.format(rank // self.per_host), rank % self.per_host
        return lambda message: f"{host}:{self.first_pid + rank}:{9000 + rank} [{device}] NCCL INFO {message}"

    def lines(self) -> Lines:
        """Of all ranks, one after the other."""
        return [line for rank in range(self.ranks) for line in self.rank_lines(rank)]

    def _network_lines(self) -> Iterator[str]:
        if self.carrier in ("ib+gdr", "socket"):
            yield self.version.no_plugin
        if self.carrier == "ib+gdr":
            yield "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"
        elif self.carrier == "socket":
            yield "NET/IB : No device found."
            yield "NET/Socket : Using [0]ens5:10.0.0.1<0>"
        else:
            yield "NET/OFI Initializing aws-ofi-nccl 1.16.3"
            provider = "tcp;ofi_rxm" if self.carrier == "libfabric tcp" else "efa"
            yield f"NET/OFI Selected provider is {provider}, fabric is {provider} (found 4 nics)"
            yield "NET/OFI Using transport protocol RDMA (platform set)"

    def _channels(self, rank: int) -> Iterator[str]:
        """Of the ring: to the next rank, and over the network also from the one before."""
        after, before = (rank + 1) % self.ranks, (rank - 1) % self.ranks
        gdr = "/GDRDMA" if self.carrier.endswith("gdr") else ""
        if self.carrier == "silent":
            return
        for source, target, way in ((rank, after, "send"), (before, rank, "receive")):
            if source // self.per_host != target // self.per_host:
                yield self.version.channel.format(c=0, s=source, t=target, way=way, net=self.network, gdr=gdr)
            elif way == "send":
                yield f"Channel 00 : {source}[0] -> {target}[1] via {self.version.inside[0]}"
                yield f"Channel 01 : {source}[0] -> {target}[1] via {self.version.inside[1]}"
