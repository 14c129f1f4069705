"""The card says what carried the traffic of how many ranks, and what shows it; without GPUs it says nothing."""

import pytest

from convoy.display.page import Callout
from convoy.job.events.registry import NetworkProof
from convoy.report.fold import fold
from convoy.report.pages.sections import network_callouts, network_facts
from convoy.report.train_report import TrainReport
from tests.report.synthetic import Log

EFA = NetworkProof(verdict="rdma+gdr", carrier="efa", adapter_bytes=10**9)
TCP = NetworkProof(verdict="tcp", carrier="socket", cause="NCCL_NET is set to Socket", fix="Unset NCCL_NET.")


def report(*proofs: NetworkProof) -> TrainReport:
    log = Log()
    log.start(world_size=max(2, len(proofs)))
    for rank, proof in enumerate(proofs):
        log.add(proof, rank=rank)
    return fold(log.events)


@pytest.mark.parametrize(
    ("proofs", "facts"),
    [
        ([EFA] * 32, ["EFA with GPUDirect, 32 of 32 ranks (NCCL's log and NIC counters agree)"]),
        ([EFA, EFA.model_copy(update={"adapter_bytes": None})], ["EFA with GPUDirect, 2 of 2 ranks (NCCL's log)"]),
        (
            [EFA, EFA.model_copy(update={"adapter_bytes": 4096})],
            ["EFA with GPUDirect, 2 of 2 ranks (NCCL's log; the NIC counters show no such traffic)"],
        ),
        (
            [EFA, EFA, TCP],
            [
                "EFA with GPUDirect, 2 of 3 ranks (NCCL's log and NIC counters agree)",
                "TCP, 1 of 3 ranks (NCCL's log)",
            ],
        ),
        ([NetworkProof(verdict="unknown")] * 2, ["network unknown, 2 of 2 ranks (NCCL's log)"]),
        ([NetworkProof(verdict="harmless")] * 2, []),
        ([], []),
    ],
)
def test_the_facts_of_a_job(proofs: list[NetworkProof], facts: list[str]) -> None:
    assert network_facts(report(*proofs).network) == facts


def test_only_tcp_is_called_out_with_its_cause_and_fix() -> None:
    (callout,) = network_callouts(report(EFA, TCP).network)
    assert isinstance(callout, Callout)
    assert callout.title == "1 of 2 ranks use TCP between hosts"
    assert callout.text == "First cause: NCCL_NET is set to Socket. Unset NCCL_NET."
    assert network_callouts(report(EFA, EFA).network) == ()


def test_a_new_generation_has_to_prove_itself() -> None:
    log = Log()
    log.start()
    log.add(EFA, rank=0)
    log.start(generation=1)
    assert network_facts(fold(log.events).network) == []
