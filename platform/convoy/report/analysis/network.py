"""What carried a gang's traffic between hosts, by the proofs of its ranks."""

from collections.abc import Sequence
from typing import Literal

from convoy.job.events.registry import Event, NetworkProof
from convoy.network.nccl.proof import LEAST_BYTES, combined_proofs
from convoy.network.nccl.verdict import carrier_name
from convoy.report.train_report import NetworkUse


def network_use(newest: Sequence[Event], world_size: int) -> tuple[NetworkUse, ...]:
    """One entry for the ranks that are alike. newest: the events of the newest generation."""
    proofs = {e.rank: e for e in newest if isinstance(e, NetworkProof)}
    groups: dict[tuple[str, str], list[NetworkProof]] = {}
    for proof in combined_proofs(list(proofs.values())):
        if proof.verdict == "harmless":
            continue
        groups.setdefault((carrier_name(proof.verdict, proof.carrier), proof.verdict), []).append(proof)
    uses = [
        NetworkUse(
            name=name,
            verdict=verdict,
            ranks=len(alike),
            world_size=world_size,
            counters=_counters(alike),
            cause=alike[0].cause,
            fix=alike[0].fix,
        )
        for (name, verdict), alike in groups.items()
    ]
    return tuple(sorted(uses, key=lambda use: -use.ranks))


def _counters(proofs: Sequence[NetworkProof]) -> Literal["agree", "disagree", "absent"]:
    """Of ranks that use RDMA; what other traffic adapters carry says nothing of TCP."""
    sent = [proof.adapter_bytes for proof in proofs]
    if not all(proof.verdict.startswith("rdma") for proof in proofs) or None in sent:
        return "absent"
    return "agree" if all(count is not None and count >= LEAST_BYTES for count in sent) else "disagree"
