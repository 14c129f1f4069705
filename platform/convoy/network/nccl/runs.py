"""Which ranks wrote a log of NCCL: those of one run, or of several that were mixed. Pure.

Processes that share a communicator are of one run. Whether two of them share one is known by its id, which NCCL writes
since 2.18. A run need not have a communicator of all its ranks: `hsdp` can do with one for each dimension of its mesh.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from convoy.config.errors import ConfigError
from convoy.network.nccl.log import Communicator, NcclLog, Process

_ADVICE = "these are logs of more than one run; pass the files of one"


@dataclass(frozen=True)
class RankLog:
    """What one rank wrote: a process, or one GPU of a process that drives several."""

    process: Process
    communicators: Sequence[Communicator]
    """Oldest first; at least one."""
    numbered: bool = True
    """Whether its rank in its largest communicator is its rank in the run."""

    @property
    def largest(self) -> Communicator:
        """The communicator whose ranks are those of the run, if one has them all."""
        return max(self.communicators, key=lambda communicator: communicator.ranks or 0)

    @property
    def rank(self) -> int | None:
        """Its rank in the run; None: no communicator has all ranks of the run."""
        return self.largest.rank if self.numbered else None

    @property
    def order(self) -> int:
        """The place of its last initialisation in the log."""
        return self.communicators[-1].order


def ranks_of_run(log: NcclLog) -> list[RankLog]:
    """The ranks of the last initialisation, by rank. Raises ConfigError if the log is that of more than one run."""
    members = [RankLog(p, group) for p in log.processes.values() for group in _by_device(p.all_communicators())]
    _refuse_contradictions(log)
    parts = _connected(members)
    if all(map(_has_numbers, parts)):
        _refuse_other_places(members)
        newest = {member.largest.rank: member for member in sorted(members, key=lambda member: member.order)}
        return [newest[rank] for rank in sorted(newest)]
    return _newest_without_numbers(parts)


def _by_device(communicators: Iterable[Communicator]) -> list[list[Communicator]]:
    """A process's communicators by its GPU: one that drives several is several ranks."""
    groups: dict[object, list[Communicator]] = {}
    for each in communicators:
        groups.setdefault(("rank", each.rank) if each.device is None else each.device, []).append(each)
    return list(groups.values())


def _connected(members: Sequence[RankLog]) -> list[list[RankLog]]:
    """The members that share communicators with each other, directly or through others."""
    parts: list[tuple[set[object], list[RankLog]]] = []
    for member in members:
        names: set[object] = {(member.process.host, member.process.pid), *member.process.memberships}
        touching = [part for part in parts if part[0] & names]
        parts = [part for part in parts if not part[0] & names]
        joined = [each for _, others in touching for each in others]
        parts.append((names.union(*(others for others, _ in touching)), [*joined, member]))
    return [joined for _, joined in parts]


def _has_numbers(part: Sequence[RankLog]) -> bool:
    """Whether the largest communicator of each is the same one: each has another rank in it."""
    sizes = {member.largest.ranks or 0 for member in part}
    return len(sizes) == 1 and len({member.largest.rank for member in part}) == len(part)


def _newest_without_numbers(parts: Sequence[Sequence[RankLog]]) -> list[RankLog]:
    """Of a run that was started several times, the last start: each has as many ranks on the same hosts."""
    hosts = [Counter(member.process.host for member in part) for part in parts]
    for other in hosts[1:]:
        if other != hosts[0]:
            raise ConfigError(
                f"FILE: {hosts[0].total()} ranks on {', '.join(sorted(hosts[0]))} share no communicator with "
                f"{other.total()} on {', '.join(sorted(other))}: {_ADVICE}"
            )
    newest = max(parts, key=lambda part: max(member.order for member in part))
    return [RankLog(member.process, member.communicators, numbered=False) for member in newest]


def _refuse_contradictions(log: NcclLog) -> None:
    """Raises ConfigError for two versions, and for two processes that are one rank of one communicator."""
    versions = log.versions | {p.nccl for p in log.processes.values() if p.nccl}
    if len(versions) > 1:
        raise ConfigError(f"FILE: NCCL has versions {' and '.join(sorted(versions))}: {_ADVICE}")
    owners: dict[tuple[str, int], Process] = {}
    for process in log.processes.values():
        for name, ranks in process.memberships.items():
            for rank in ranks:
                owner = owners.setdefault((name, rank), process)
                if owner is not process:
                    raise ConfigError(
                        f"FILE: rank {rank} of communicator {name} is process {owner.pid} on {owner.host} and process "
                        f"{process.pid} on {process.host}: {_ADVICE}"
                    )


def _refuse_other_places(members: Sequence[RankLog]) -> None:
    """Raises ConfigError if runs have different sizes, or a rank on different hosts."""
    sizes = sorted({size for member in members if (size := member.largest.ranks)})
    if len(sizes) > 1:
        raise ConfigError(f"FILE: runs of {' and '.join(map(str, sizes))} ranks: {_ADVICE}")
    hosts: dict[int, str] = {}
    for member in members:
        rank, host = member.largest.rank, member.process.host
        if hosts.setdefault(rank, host) != host:
            raise ConfigError(f"FILE: rank {rank} is on {hosts[rank]} and on {host}: {_ADVICE}")
