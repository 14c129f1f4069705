"""Proof of what carried a gang's traffic: what each rank's log shows is exchanged, so that all ranks judge the same
evidence and end together, or not at all."""

from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist

from convoy.config.cluster import NetworkRequirement
from convoy.job.events.registry import NetworkProof
from convoy.network.nccl.log import read_lines
from convoy.network.nccl.proof import proof_of, refuse_other_network, report_of
from convoy.network.nccl.verdict import RankReport, combine
from convoy.training.process_groups import Ranks


def prove_network(
    ranks: Ranks,
    required: NetworkRequirement | None,
    log: Iterable[bytes],
    adapter_bytes: int | None,
    record: Callable[[NetworkProof], None] | None = None,
) -> list[NetworkProof]:
    """What carried the traffic of each rank. All ranks call it, each with the log that it has written.

    record: takes this rank's. Raises NetworkRequirementError on all of them, after that, if a log shows that something
    else than what is required carried a rank's.
    """
    own = report_of(ranks.place.rank, read_lines(log))
    gathered: list[Any] = [None] * ranks.place.world_size
    dist.all_gather_object(gathered, (own.model_dump_json(), adapter_bytes), group=ranks.control)
    reports = combine([RankReport.model_validate_json(report) for report, _ in gathered]).ranks
    proofs = [
        proof_of(report, sent).model_copy(update={"rank": rank, "node": rank // ranks.place.nproc_per_node})
        for rank, (report, (_, sent)) in enumerate(zip(reports, gathered, strict=True))
    ]
    if record is not None:
        record(proofs[ranks.place.rank])
    if required is not None:
        refuse_other_network(required, reports)
    return proofs
