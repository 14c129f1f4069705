"""What a log of NCCL proves about the network that carried a run's traffic, rank by rank. Pure.

A verdict claims RDMA only if a channel uses an RDMA network: a loaded plugin or a chosen network proves nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import BaseModel

from convoy.config.cluster import NetworkRequirement
from convoy.network.nccl.causes import CAUSES, FIX_LOG, first_cause
from convoy.network.nccl.log import Communicator, NcclLog, Process
from convoy.network.nccl.runs import RankLog, ranks_of_run

Verdict = Literal["rdma+gdr", "rdma", "tcp", "harmless", "unknown"]
WORST_FIRST: tuple[Verdict, ...] = ("tcp", "unknown", "rdma", "rdma+gdr", "harmless")

LIBFABRIC = ("AWS Libfabric", "Libfabric", "OFI")
RDMA_PROVIDERS = ("efa", "verbs", "cxi", "psm2", "opx", "gni")
"""Of libfabric. Its `tcp`, `sockets` and `udp` are the kernel's TCP and UDP, also below `ofi_rxm` and `ofi_rxd`."""
KERNEL_PROVIDERS = ("tcp", "sockets", "udp", "net")
KERNEL_NETWORKS = ("socket", "fastsocket", "gpudirecttcpx")
SOFTWARE_DEVICES = ("rxe", "siw")
"""RDMA devices of Linux that the kernel makes of an Ethernet interface."""

_CARRIERS = {"efa": "EFA", "ib": "InfiniBand or RoCE"}


class CommunicatorReport(BaseModel):
    """One communicator of a rank."""

    rank: int
    ranks: int | None
    nodes: int | None
    network: str | None
    """The network that carried its traffic, or else the one that NCCL chose."""
    paths: dict[str, int]
    """Channels by path: `P2P`, `SHM`, `NET/IB`, `NET/IB/GDRDMA`."""
    verdict: Verdict
    why: str


class RankReport(BaseModel):
    """What a log proves about one rank."""

    rank: int | None
    """Its rank in the communicator of all ranks; None if the log shows none, as it may be with `hsdp`."""
    verdict: Verdict
    why: str
    carrier: str | None = None
    """Of traffic between hosts: `efa`, another provider of libfabric, `ib` (InfiniBand or RoCE) or `socket`."""
    cause: str | None = None
    """Of a verdict that is worse than it could be, the first cause in the log."""
    fix: str | None = None
    host: str
    ranks: int | None = None
    nodes: int | None = None
    nccl: str | None = None
    plugin: str | None = None
    provider: str | None = None
    fabric: str | None = None
    protocol: str | None = None
    network: str | None = None
    nics: int | None = None
    paths: dict[str, int] = {}
    communicators: list[CommunicatorReport] = []

    def meets(self, requirement: NetworkRequirement) -> bool:
        """Whether the log proves the requirement for this rank."""
        match requirement:
            case "efa":
                return self.verdict in ("rdma", "rdma+gdr") and self.carrier == "efa"
            case "rdma":
                return self.verdict in ("rdma", "rdma+gdr")
            case "gdr":
                return self.verdict == "rdma+gdr"

    def contradicts(self, requirement: NetworkRequirement) -> bool:
        """Whether the log proves that something else carried its traffic."""
        return self.verdict in ("tcp", "rdma", "rdma+gdr") and not self.meets(requirement)


class LogReport(BaseModel):
    """What a log proves about a run."""

    verdict: Verdict
    """The worst of its ranks'."""
    ranks: list[RankReport]


class _Finding(NamedTuple):
    verdict: Verdict
    why: str
    carrier: str | None = None


def judge(log: NcclLog) -> LogReport:
    """The verdicts of a log's ranks. Raises ConfigError for the ranks of more than one run."""
    members, versions = ranks_of_run(log), sorted(log.versions)
    hosts = _hosts_of_communicators(members)
    reports = [_rank_report(each.process, each, hosts, versions) for each in members]
    if not reports:
        processes = list(log.processes.values()) or [Process("", 0)]
        reports = [_rank_report(process, None, hosts, versions) for process in processes]
    return combine(reports)


def combine(reports: Sequence[RankReport]) -> LogReport:
    """What the logs of all ranks of a run prove together. reports: at least one."""
    resolved = _resolve_inside(reports)
    return LogReport(verdict=min((report.verdict for report in resolved), key=WORST_FIRST.index), ranks=resolved)


def carrier_name(verdict: str, carrier: str | None) -> str:
    """What carried a rank's traffic between hosts: `EFA with GPUDirect`."""
    match verdict:
        case "harmless":
            return "nothing crosses hosts"
        case "unknown":
            return "unknown"
        case "tcp":
            return "TCP"
        case _:
            name = _CARRIERS.get(carrier or "", carrier)
            return f"{name} {'with' if verdict == 'rdma+gdr' else 'without'} GPUDirect"


def _hosts_of_communicators(members: Sequence[RankLog]) -> dict[str | int, int]:
    """The number of hosts of the communicators of which the log has every rank: by id, and of those of the whole run
    by their number of ranks.

    Hosts that a network joins may have one name, as `localhost`: their number is not known.
    """
    places: dict[str | int, dict[int, str]] = {}
    sizes: dict[str | int, int] = {}
    joined: set[str | int] = set()

    def add(key: str | int, communicator: Communicator, host: str, *, may_leave_host: bool) -> None:
        places.setdefault(key, {})[communicator.rank] = host
        sizes[key] = communicator.ranks or 0
        if may_leave_host:
            joined.add(key)

    for member in members:
        host = member.process.host
        for each in member.communicators:
            if each.name:
                add(each.name, each, host, may_leave_host=not each.paths or _leaves_host(each))
        if member.numbered:
            leaves = any(map(_leaves_host, member.communicators))
            add(member.largest.ranks or 0, member.largest, host, may_leave_host=leaves)
    counts = {key: len(set(hosts.values())) for key, hosts in places.items() if len(hosts) == sizes[key]}
    return {key: count for key, count in counts.items() if count > 1 or key not in joined}


def _rank_report(
    process: Process, member: RankLog | None, hosts: Mapping[str | int, int], versions: Sequence[str]
) -> RankReport:
    """member: None where the process has initialised no communicator."""
    findings = [(c, _judge_one(c, process, hosts)) for c in (member.communicators if member else ())]
    communicator, finding = _deciding(findings) or (None, _Finding("unknown", "no communicator was initialised"))
    cause, fix = _cause(process, finding)
    whole = member.largest if member and member.numbered else None
    return RankReport(
        rank=member.rank if member else None, verdict=finding.verdict, why=finding.why,
        carrier=finding.carrier, cause=cause, fix=fix, host=process.host,
        ranks=whole.ranks if whole else None, nodes=whole.nodes if whole else None,
        nccl=process.nccl or (versions[0] if versions else None), plugin=process.plugin, provider=process.provider,
        fabric=process.fabric, protocol=process.protocol, nics=process.nics,
        network=_network(communicator) if communicator else process.network,
        paths=dict(sorted(communicator.paths.items())) if communicator else {},
        communicators=[
            CommunicatorReport(
                rank=c.rank, ranks=c.ranks, nodes=c.nodes, network=_network(c), paths=dict(sorted(c.paths.items())),
                verdict=f.verdict, why=f.why,
            )
            for c, f in findings
        ],
    )  # fmt: skip


def _deciding(findings: Sequence[tuple[Communicator, _Finding]]) -> tuple[Communicator, _Finding] | None:
    """Of a rank's communicators, oldest first: the last that leaves the host, and what it proves.

    One without any channel says nothing where an earlier one chose the same network: NCCL connects on first use.
    """
    crossing = [(c, f) for c, f in findings if f.verdict != "harmless"]
    if not crossing:
        return findings[-1] if findings else None
    last, finding = crossing[-1]
    for communicator, earlier in reversed(crossing):
        if finding.verdict != "unknown" or last.paths or communicator.network != last.network:
            break
        if earlier.verdict != "unknown":
            return communicator, earlier
    return last, finding


def _network(communicator: Communicator) -> str | None:
    """What carried its traffic between hosts, or else what NCCL chose to carry it."""
    used = next((path for path in communicator.paths if path.startswith("NET/")), None)
    return used.removeprefix("NET/").removesuffix("/GDRDMA") if used else communicator.network


def _judge_one(communicator: Communicator, process: Process, hosts: Mapping[str | int, int]) -> _Finding:
    nodes = communicator.nodes or hosts.get(communicator.name or "") or hosts.get(communicator.ranks or 0)
    paths = Counter({path: n for path, n in communicator.paths.items() if path.startswith("NET/")})
    if nodes == 1:
        return _Finding("harmless", "all ranks are on one node: nothing crosses hosts")
    if communicator.nvlink_between_nodes and not paths:
        return _Finding("harmless", "NVLink joins the hosts: no network carries the traffic")
    network = _network(communicator)
    if not paths:
        if network and _is_kernels(network) and nodes:
            return _Finding("tcp", f"NCCL chose {network} between {nodes} nodes", "socket")
        chosen = f"NCCL chose {network}, but " if network else ""
        if communicator.paths:
            return _Finding("unknown", f"{chosen}all channels stay on the host")
        return _Finding("unknown", f"{chosen}no line shows the path of a channel")
    verdict, carrier, why = _judge_network(network or "", process, any(p.endswith("/GDRDMA") for p in paths))
    if verdict != "rdma":
        return _Finding(verdict, why, carrier)
    direct, total = sum(n for path, n in paths.items() if path.endswith("/GDRDMA")), paths.total()
    if direct == total:
        return _Finding("rdma+gdr", f"{why}, {total} of {total} network channels with GPUDirect", carrier)
    return _Finding("rdma", f"{why}, {direct} of {total} network channels with GPUDirect", carrier)


def _is_kernels(network: str) -> bool:
    return network.lower().startswith(KERNEL_NETWORKS)


def _judge_network(network: str, process: Process, gdr: bool) -> tuple[Verdict, str | None, str]:
    """Whether a network that carried channels is RDMA, what it is, and how that is known."""
    via = f"channels via NET/{network}"
    if _is_kernels(network):
        return "tcp", "socket", f"{via}: TCP of the kernel"
    if network in LIBFABRIC:
        provider = (process.provider or ("efa" if any(map(_is_efa, process.devices)) else "")).split(";")[0]
        if provider in RDMA_PROVIDERS:
            return "rdma", "ib" if provider == "verbs" else provider, f"{via} over provider {provider}"
        if provider in KERNEL_PROVIDERS:
            return "tcp", "socket", f"{via} over provider {process.provider}: TCP or UDP of the kernel"
        return (
            "unknown",
            None,
            f"{via}, but {f'provider {provider} is not known' if provider else 'the log does not name the provider'}",
        )
    if network.startswith(("IB", "SPCX")) or (network.startswith("UCX") and gdr):
        if process.devices and all(device.startswith(SOFTWARE_DEVICES) for device in process.devices):
            return "tcp", "socket", f"{via} on {', '.join(sorted(process.devices))}: RDMA that the kernel imitates"
        return "rdma", "ib", via
    return "unknown", None, f"{via}, of which it is not known whether it is RDMA"


def _is_efa(device: str) -> bool:
    return device.startswith(("rdmap", "efa_"))


def _cause(process: Process, finding: _Finding) -> tuple[str | None, str | None]:
    """The first cause of a verdict that could be better, and the fix."""
    lines = dict(process.causes)
    if process.provider and process.provider.split(";")[0] in KERNEL_PROVIDERS:
        lines["provider"] = f"provider {process.provider}"
    if found := first_cause(finding.verdict, lines):
        return found
    match finding.verdict:
        case "tcp":
            return "the log does not say why NCCL did not choose RDMA", FIX_LOG
        case "rdma":
            return CAUSES["no_gdr"].text, CAUSES["no_gdr"].fix
        case "unknown":
            return None, FIX_LOG
        case _:
            return None, None


def _resolve_inside(reports: Sequence[RankReport]) -> list[RankReport]:
    """Ranks none of whose channels leave the host get the verdict of those of their host that carry for them."""
    carriers: dict[tuple[str, int | None], RankReport] = {}
    for report in reports:
        if report.carrier:
            key = report.host, report.ranks
            carriers[key] = min(carriers.get(key, report), report, key=lambda r: WORST_FIRST.index(r.verdict))
    resolved = []
    for report in reports:
        carrier = carriers.get((report.host, report.ranks))
        if carrier and report.verdict == "unknown" and report.paths and not _leaves_host(report):
            why = f"all channels stay on the host, where other ranks have {carrier.why}"
            update = {"verdict": carrier.verdict, "carrier": carrier.carrier, "why": why, "cause": carrier.cause}
            report = report.model_copy(update={**update, "fix": carrier.fix})
        resolved.append(report)
    return resolved


def _leaves_host(of: RankReport | Communicator) -> bool:
    return any(path.startswith("NET/") for path in of.paths)
