"""Every rank records what its log of NCCL shows, and all end together where that is not what is required."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from convoy.config.cluster import NetworkRequirement
from convoy.config.errors import ConfigError
from convoy.job.events.registry import NetworkProof, decode, encode
from convoy.training import rank as rank_module
from convoy.training.measure.network_proof import prove_network
from convoy.training.process_groups import Ranks
from tests.network.nccl.written import Carrier
from tests.network.nccl.written import Job as Written
from tests.ranks import RankFailedError, in_a_group
from tests.training.job import Job, place, tiny

RANKS = 3


def _prove(
    rank: int, world: int, carriers: list[Carrier], per_host: int, required: NetworkRequirement | None
) -> tuple[str, NetworkProof]:
    group, events = cast(dist.ProcessGroup, dist.group.WORLD), list[NetworkProof]()
    ranks = Ranks(place(rank, world, per_host), torch.device("cpu"), cast(Any, None), group, group)
    lines = [line.encode() for line in Written(carrier=carriers[rank], ranks=world, per_host=per_host).rank_lines(rank)]
    try:
        proofs = prove_network(ranks, required, [b"step 1 of 9\n", *lines], 10**6, events.append)
        assert [proof.rank for proof in proofs] == list(range(world))
        assert proofs[rank] == events[0]
        how = "trains"
    except ConfigError as error:
        how = str(error)
    (event,) = events
    assert decode(encode(event)) == event
    return how, event


def proven(
    *carriers: Carrier, required: NetworkRequirement | None = None, per_host: int = 1
) -> tuple[list[str], list[NetworkProof]]:
    how, events = zip(
        *in_a_group(len(carriers), _prove, len(carriers), list(carriers), per_host, required), strict=True
    )
    return list(how), list(events)


def test_each_rank_records_what_carried_its_traffic() -> None:
    how, events = proven("efa+gdr", "socket", "efa+gdr")
    assert how == ["trains"] * RANKS
    assert [event.verdict for event in events] == ["rdma+gdr", "tcp", "rdma+gdr"]
    assert (events[0].carrier, events[0].provider, events[0].adapter_bytes) == ("efa", "efa", 10**6)
    assert events[0].paths == {"NET/AWS Libfabric/GDRDMA": 2}
    assert events[1].cause is not None
    assert events[1].fix is not None


def test_one_rank_that_fell_back_ends_all_with_its_cause_and_fix() -> None:
    how, events = proven("efa+gdr", "efa+gdr", "libfabric tcp", required="efa")
    assert len(set(how)) == 1
    assert how[0].startswith(
        "cluster.require_network = efa: 1 of 3 ranks use another network, rank 2 on node-2 TCP; first cause: libfabric "
        "offers no EFA device, or FI_PROVIDER excludes it: provider tcp;ofi_rxm. Unset FI_PROVIDER;"
    )
    assert [event.verdict for event in events] == ["rdma+gdr", "rdma+gdr", "tcp"]


def test_what_is_required_and_proven_or_not_known_does_not_end_the_attempt() -> None:
    assert proven("efa+gdr", "efa", "silent", required="efa")[0] == ["trains"] * RANKS
    assert "rank 1 on node-1 EFA without GPUDirect" in proven("efa+gdr", "efa", "efa+gdr", required="gdr")[0][0]
    assert "rank 0 on node-0 InfiniBand or RoCE" in proven(*["ib+gdr"] * 3, required="efa")[0][2]  # type: ignore[list-item]


def test_a_rank_whose_channels_stay_on_its_host_takes_the_verdict_of_the_others_there() -> None:
    _, events = proven(*["efa+gdr"] * 6, per_host=3)  # type: ignore[list-item]
    assert {event.verdict for event in events} == {"rdma+gdr"}


def _as_on_gpus_of_two_hosts(carrier: Carrier) -> Callable[[int], None]:
    """A fault of a job on CPUs: each rank finds in its output what NCCL would have written there."""

    def pretend(rank: int) -> None:
        lines = [line.encode() for line in Written(carrier=carrier, ranks=2, per_host=1).rank_lines(rank)]
        rank_module.torch = cast(Any, SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 1)))
        rank_module.read_own_log = lambda: lines
        Ranks.across_hosts = True  # type: ignore[method-assign, assignment]

    return pretend


def test_a_job_proves_its_network_after_the_first_step_and_ends_there_if_it_is_another(tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 2}))
    job.run(2, _as_on_gpus_of_two_hosts("efa+gdr"), cluster={"require_network": "efa"})
    assert {(e.rank, e.verdict) for e in job.events(NetworkProof)} == {(0, "rdma+gdr"), (1, "rdma+gdr")}
    other = Job(str(tmp_path), tiny(train={"steps": 2}), name="other")
    with pytest.raises(RankFailedError, match=r"cluster\.require_network = efa: 2 of 2 ranks use another network"):
        other.run(2, _as_on_gpus_of_two_hosts("socket"), cluster={"require_network": "efa"})
    assert {(e.rank, e.verdict) for e in other.events(NetworkProof)} == {(0, "tcp"), (1, "tcp")}
