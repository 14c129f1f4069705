"""What carried the traffic of a benchmark's gang between hosts, for its cases."""

from collections.abc import Sequence
from pathlib import Path

import torch

from convoy.benchmark.groups import Group
from convoy.benchmark.results.case import Case
from convoy.network.nccl.proof import OWN_OUTPUT, NetworkWatch, read_own_log
from convoy.report.analysis.network import network_use
from convoy.training.measure.network_proof import prove_network
from convoy.training.process_groups import Ranks


def watch_network(file: Path | None = None) -> NetworkWatch | None:
    """Call it before the ranks join; None on a CPU. file: for NCCL's log, where the output is not the rank's own."""
    return NetworkWatch.begin(file) if torch.cuda.device_count() else None


def with_network_use(
    cases: Sequence[Case], group: Group, ranks: Ranks, watch: NetworkWatch | None, log: Path = OWN_OUTPUT
) -> list[Case]:
    """The cases with what carried their traffic so far. All ranks call it, each with its own log.

    Raises NetworkRequirementError on all of them if that is not what the group's `cluster.require_network` wants.
    """
    if watch is None or not ranks.across_hosts or not _is_by_backend(group):
        return list(cases)
    proofs = prove_network(ranks, group.run.cluster.require_network, read_own_log(log), watch.adapter_bytes())
    carried_by = network_use(proofs, ranks.place.world_size)
    return [case.model_copy(update={"carried_by": carried_by}) for case in cases]


def _is_by_backend(group: Group) -> bool:
    """Whether NCCL carries what the group measures; not iperf3's connections, NIXL's transfers or copies in a host."""
    return group.network is None or bool(group.network.operations) or {*group.network.links} <= {"pairs", "rails"}
