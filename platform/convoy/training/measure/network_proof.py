"""Proof of what carried a gang's traffic: every GPU rank has NCCL log into its own output, and reads it after a step.

What a rank's log shows is exchanged, so that all ranks judge the same evidence and end together, or not at all.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from convoy.config.cluster import NetworkRequirement
from convoy.config.errors import ConfigError
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import NetworkProof
from convoy.network.counters import Reading, read_counters, traffic_between
from convoy.network.nccl.log import lines_of, read_lines
from convoy.network.nccl.verdict import RankReport, combine, judge
from convoy.network.pages.nccl import carrier_name
from convoy.training.process_groups import Ranks

OWN_OUTPUT = Path("/proc/self/fd/1")
"""The file that a rank's output goes to."""

NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,GRAPH"}

_RECORDED = {"verdict", "carrier", "why", "cause", "fix", "nccl", "plugin", "provider", "network", "nics", "paths"}
"""What the event takes over from a report."""


def request_nccl_log(variables: MutableMapping[str, str] = os.environ) -> None:
    """Have NCCL log what it uses to this process's output, unless the user decides what it logs. NCCL reads the
    variables when it is first used. Its lines go to C's stdout, which holds them back where that is a file."""
    if "NCCL_DEBUG" not in variables:
        variables.update(NCCL_LOG)
    c = ctypes.CDLL(None)
    c.setlinebuf(ctypes.c_void_p.in_dll(c, "stdout"))


@dataclass(frozen=True)
class NetworkWatch:
    """What a GPU rank has noted before its first communicator."""

    counters: Reading | None

    @staticmethod
    def begin() -> "NetworkWatch":
        """Call it before NCCL is first used, on every GPU rank."""
        request_nccl_log()
        return NetworkWatch(_read_counters())

    def adapter_bytes(self) -> int | None:
        """Sent by the host's RDMA adapters since; None: it has none, or they do not count."""
        now = _read_counters()
        if self.counters is None or now is None or not now.rails:
            return None
        return sum(rail.sent_bytes for rail in traffic_between(self.counters, now, 0.0).rails)


def prove_network(
    ranks: Ranks,
    required: NetworkRequirement | None,
    events: EventWriter,
    log: Iterable[bytes],
    adapter_bytes: int | None,
) -> None:
    """Record what carried this rank's traffic. All ranks call it, each with the log it has written.

    Raises ConfigError on all of them if a log shows that something else than what is required carried a rank's.
    """
    own = _own_report(ranks.place.rank, log)
    gathered: list[Any] = [None] * ranks.place.world_size
    dist.all_gather_object(gathered, own.model_dump_json(), group=ranks.control)
    reports = combine([RankReport.model_validate_json(each) for each in gathered]).ranks
    own = reports[ranks.place.rank]
    events.append(NetworkProof(**own.model_dump(include=_RECORDED), adapter_bytes=adapter_bytes))
    if required is not None:
        _refuse_other_network(required, reports)


def read_own_log(file: Path = OWN_OUTPUT) -> Iterable[bytes]:
    """What this process has written to its output so far; nothing where that is no file."""
    ctypes.CDLL(None).fflush(None)
    with contextlib.suppress(OSError):
        if file.is_file():
            yield from lines_of(file)


def _own_report(rank: int, log: Iterable[bytes]) -> RankReport:
    try:
        found = judge(read_lines(log)).ranks
    except ConfigError as error:
        return RankReport(rank=rank, verdict="unknown", why=str(error), host="")
    own = next((report for report in found if report.rank == rank), found[0])
    return own.model_copy(update={"rank": rank, "communicators": []})


def _refuse_other_network(required: NetworkRequirement, reports: Sequence[RankReport]) -> None:
    others = [report for report in reports if report.contradicts(required)]
    if not others:
        return
    first = others[0]
    cause = f"; first cause: {first.cause}. {first.fix}" if first.cause else f". {first.fix}" if first.fix else ""
    raise ConfigError(
        f"cluster.require_network = {required}: {len(others)} of {len(reports)} ranks use another network, rank "
        f"{first.rank} on {first.host} {carrier_name(first.verdict, first.carrier)}{cause}"
    )


def _read_counters() -> Reading | None:
    try:
        return read_counters()
    except OSError:
        return None
