"""Proof of what carried a rank's traffic: NCCL logs into the rank's own output, which the rank itself reads."""

import contextlib
import ctypes
import os
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from convoy.config.cluster import NetworkRequirement
from convoy.config.errors import ConfigError
from convoy.job.events.registry import NetworkProof
from convoy.network.counters import Reading, read_counters, traffic_between
from convoy.network.nccl.log import NcclLog, lines_of, read_lines
from convoy.network.nccl.verdict import RankReport, carrier_name, combine, judge

OWN_OUTPUT = Path("/proc/self/fd/1")
"""The file that a rank's output goes to."""

NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,GRAPH"}

_RECORDED = {"verdict", "carrier", "why", "cause", "fix", "nccl", "plugin", "provider", "network", "nics", "paths"}
"""What an event takes over from a report."""


LEAST_BYTES = 65_536
"""Adapters that sent less have carried no step: management of a fabric alone sends a few kilobytes."""


class NetworkRequirementError(ConfigError):
    """Another network than `cluster.require_network` carries traffic between hosts."""


def request_nccl_log(variables: MutableMapping[str, str] = os.environ, file: Path | None = None) -> None:
    """Have NCCL log what it uses to this process's output, or to `file`, unless the user decides what it logs. NCCL
    reads the variables when it is first used. Its lines go to C's stdout, which holds them back where that is a file.
    """
    if "NCCL_DEBUG" not in variables:
        variables.update(NCCL_LOG)
        if file is not None:
            variables.setdefault("NCCL_DEBUG_FILE", str(file))
    c = ctypes.CDLL(None)
    c.setlinebuf(ctypes.c_void_p.in_dll(c, "stdout"))


@dataclass(frozen=True)
class NetworkWatch:
    """What a GPU rank has noted before its first communicator."""

    counters: Reading | None

    @staticmethod
    def begin(file: Path | None = None) -> "NetworkWatch":
        """Call it before NCCL is first used, on every GPU rank. file: for NCCL's log, in place of the output."""
        request_nccl_log(file=file)
        return NetworkWatch(_read_counters())

    def adapter_bytes(self) -> int | None:
        """Sent by the host's RDMA adapters since; None: it has none, or they do not count."""
        now = _read_counters()
        if self.counters is None or now is None or not now.rails:
            return None
        return sum(rail.sent_bytes for rail in traffic_between(self.counters, now, 0.0).rails)


@dataclass
class OwnProof:
    """The proof of a rank that does not exchange it with others, such as that of a user's script."""

    rank: int
    required: NetworkRequirement | None
    watch: NetworkWatch
    output: Path = OWN_OUTPUT
    _last: RankReport | None = field(default=None, init=False)
    _are_counted: bool = field(default=False, init=False)

    @property
    def is_final(self) -> bool:
        """Whether the log has shown what carries this rank's traffic between hosts, and the adapters have counted it: a
        GPU may send long after its host has asked for it."""
        return self._last is not None and self._last.carrier is not None and self._are_counted

    def look(self) -> NetworkProof | None:
        """What the log shows now; None: nothing since the last look, or no line of NCCL."""
        log = read_lines(read_own_log(self.output))
        report, sent = report_of(self.rank, log), self.watch.adapter_bytes()
        are_counted = not report.verdict.startswith("rdma") or sent is None or sent >= LEAST_BYTES
        if not log.lines or (report, are_counted) == (self._last, self._are_counted):
            return None
        self._last, self._are_counted = report, are_counted
        return proof_of(report, sent)

    def refuse_other_network(self) -> None:
        """Raise NetworkRequirementError if the last look shows something else than what is required."""
        if self.required is not None and self._last is not None:
            refuse_other_network(self.required, [self._last])


def read_own_log(file: Path = OWN_OUTPUT) -> Iterable[bytes]:
    """What this process has written to its output so far; nothing where that is no file."""
    ctypes.CDLL(None).fflush(None)
    with contextlib.suppress(OSError):
        if file.is_file():
            yield from lines_of(file)


def report_of(rank: int, log: NcclLog) -> RankReport:
    """What the log that a rank itself has written proves of it, without what its child processes wrote there."""
    try:
        found = judge(log.of_process(os.getpid())).ranks
    except ConfigError as error:
        return RankReport(rank=rank, verdict="unknown", why=str(error), host="")
    own = next((report for report in found if report.rank == rank), found[0])
    return own.model_copy(update={"rank": rank, "communicators": []})


def proof_of(report: RankReport, adapter_bytes: int | None) -> NetworkProof:
    """The event that records a report. adapter_bytes: as `NetworkWatch` has them."""
    return NetworkProof(**report.model_dump(include=_RECORDED), adapter_bytes=adapter_bytes)


def combined_proofs(proofs: Sequence[NetworkProof]) -> list[NetworkProof]:
    """The proofs of a run's ranks, in the same order. A rank whose channels all stay on its node, and which has not
    seen the logs of others, has the verdict of the ranks there whose channels leave it."""
    if not proofs:
        return []
    reports = combine(
        [RankReport(rank=proof.rank, host=str(proof.node), **proof.model_dump(include=_RECORDED)) for proof in proofs]
    ).ranks
    return [
        proof.model_copy(update=report.model_dump(include=_RECORDED))
        for proof, report in zip(proofs, reports, strict=True)
    ]


def refuse_other_network(required: NetworkRequirement, reports: Sequence[RankReport]) -> None:
    """Raise NetworkRequirementError, with the first cause and its fix, if a report proves that something else than
    what is required carried a rank's traffic."""
    others = [report for report in reports if report.contradicts(required)]
    if not others:
        return
    first = others[0]
    cause = f"; first cause: {first.cause}. {first.fix}" if first.cause else f". {first.fix}" if first.fix else ""
    count = f"{len(others)} of {len(reports)} ranks use another network, " if len(reports) > 1 else ""
    uses = "" if count else "uses "
    raise NetworkRequirementError(
        f"cluster.require_network = {required}: {count}rank {first.rank} on {first.host} "
        f"{uses}{carrier_name(first.verdict, first.carrier)}{cause}"
    )


def _read_counters() -> Reading | None:
    try:
        return read_counters()
    except OSError:
        return None
