"""The cases of a gang on GPUs of several hosts say what carried its traffic, and all ranks end if that is refused."""

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from convoy.benchmark import worker
from convoy.benchmark.groups import Group, VariantSpec
from convoy.benchmark.measure import network_use
from convoy.benchmark.measure.network_use import with_network_use
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.files import read_cases
from convoy.config.cluster import NetworkRequirement
from convoy.config.errors import ConfigError
from convoy.config.network import LinkKind, NetworkConfig
from convoy.network.nccl.proof import NetworkWatch
from convoy.report.train_report import NetworkUse
from convoy.training.process_groups import Ranks
from tests.benchmark.benches import a_group
from tests.benchmark.cases import a_case, replaced
from tests.network.nccl.written import Carrier, Job
from tests.ranks import RankFailedError, in_a_group, on_ranks
from tests.training.job import place

EFA = NetworkUse(
    name="EFA with GPUDirect", verdict="rdma+gdr", ranks=2, world_size=2, counters="absent", cause=None, fix=None
)


def written(carrier: Carrier, rank: int) -> list[bytes]:
    return [f"{line}\n".encode() for line in Job(carrier=carrier, ranks=2, per_host=1).rank_lines(rank)]


def group_of(root: Path, required: NetworkRequirement | None) -> Group:
    group = a_group(str(root), VariantSpec(name="ours"), nodes=2)
    cluster = replaced(group.run.cluster, require_network=required)
    return replaced(group, run=replaced(group.run, cluster=cluster))


def _with_use(rank: int, folder: Path, group: Group, carrier: Carrier, hosts: int) -> list[Case] | str:
    log = folder / str(rank)
    log.write_bytes(b"".join(written(carrier, rank)))
    world = cast(dist.ProcessGroup, dist.group.WORLD)
    of_hosts = place(rank, 2, 2 // hosts).model_copy(update={"host_ranks": 2 // hosts})
    ranks = Ranks(of_hosts, torch.device("cpu"), cast(Any, None), world, world)
    try:
        return with_network_use([a_case()] if rank == 0 else [], group, ranks, NetworkWatch(None), log)
    except ConfigError as error:
        return str(error)


def test_the_cases_say_what_carried_the_traffic_of_all_ranks(tmp_path: Path) -> None:
    (case,), others = in_a_group(2, _with_use, tmp_path, group_of(tmp_path, "efa"), "efa+gdr", 2)
    assert case.carried_by == (EFA,)
    assert Case.model_validate_json(case.model_dump_json()) == case
    assert others == []


def test_another_network_than_required_ends_all_ranks_with_the_first_cause(tmp_path: Path) -> None:
    errors = in_a_group(2, _with_use, tmp_path, group_of(tmp_path, "efa"), "libfabric tcp", 2)
    assert len(set(errors)) == 1
    assert errors[0].startswith(
        "cluster.require_network = efa: 2 of 2 ranks use another network, rank 0 on node-0 TCP;"
    )
    (case,), _ = in_a_group(2, _with_use, tmp_path, group_of(tmp_path, None), "libfabric tcp", 2)
    assert [use.name for use in case.carried_by] == ["TCP"]


def test_a_gang_on_one_host_says_nothing(tmp_path: Path) -> None:
    (case,), _ = in_a_group(2, _with_use, tmp_path, group_of(tmp_path, "efa"), "socket", 1)
    assert case.carried_by == ()


@pytest.mark.parametrize(("links", "named"), [(("pairs",), True), (("transports",), False), (("copies",), False)])
def test_only_what_nccl_carries_is_said_to_be_carried_by_its_network(
    tmp_path: Path, links: tuple[LinkKind, ...], named: bool
) -> None:
    group = replaced(group_of(tmp_path, "efa"), network=NetworkConfig(operations=(), links=links))
    (case,), _ = in_a_group(2, _with_use, tmp_path, group, "efa+gdr", 2)
    assert case.carried_by == ((EFA,) if named else ())


def _measure(rank: int, group: Group, folder: Path, port: int, carrier: Carrier | None) -> None:
    """A rank of a benchmark's gang, which finds in its output what NCCL would have written on GPUs of two hosts."""
    own = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank}
    os.environ |= {name: str(value) for name, value in own.items()}
    os.environ.pop("NCCL_DEBUG", None)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    if carrier is not None:
        lines = written(carrier, rank)
        network_use.torch = cast(Any, SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 1)))
        network_use.read_own_log = lambda _: lines
        Ranks.across_hosts = True  # type: ignore[method-assign, assignment]
    worker.main(group, folder)
    assert ("NCCL_DEBUG" in os.environ) == (carrier is not None)


def measured(root: Path, carrier: Carrier | None, required: NetworkRequirement | None = None) -> list[Case]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    on_ranks(2, _measure, group_of(root, required), root / "cases", port, carrier)
    return list(read_cases(root / "cases"))


@pytest.mark.processes
def test_a_gang_proves_its_network_after_it_has_measured_and_writes_no_case_on_another(tmp_path: Path) -> None:
    (case,) = measured(tmp_path / "efa", "efa+gdr", "efa")
    assert case.carried_by == (EFA,)
    with pytest.raises(RankFailedError, match=r"cluster\.require_network = efa: 2 of 2 ranks use another network"):
        measured(tmp_path / "tcp", "socket", "efa")
    assert not (tmp_path / "tcp/cases").exists()


@pytest.mark.processes
def test_a_gang_on_cpus_says_nothing_of_a_network(tmp_path: Path) -> None:
    (case,) = measured(tmp_path, None, "efa")
    assert case.carried_by == ()
