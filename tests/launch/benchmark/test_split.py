"""What memory the ranks of a benchmark have, by what is known of their machines."""

from typing import Any

import pytest

from convoy.benchmark.groups import Group, Ranks
from convoy.catalog.instances import instance
from convoy.config.benchmark import BenchConfig
from convoy.config.errors import ConfigError
from convoy.launch.benchmark import split
from convoy.launch.checks.memory import MIB, memory_mib


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Ranks]:
    """For which ranks benchmarks were planned."""
    found: list[Ranks] = []
    plan = split.plan

    def noted(config: BenchConfig, runs: Any, ranks: Ranks) -> list[Group]:
        found.append(ranks)
        return plan(config, runs, ranks)

    monkeypatch.setattr(split, "plan", noted)
    monkeypatch.setattr(split, "host_memory_mib", lambda: 64 * 1024)
    return found


def share(**cluster: object) -> None:
    run = {"root": "s3://a-bucket/jobs", "cluster": cluster, "train": {"global_batch": 16}}
    split.shares_of(BenchConfig.model_validate({"suites": ["utilisation"], "run": run}))


def test_on_this_host_ranks_share_its_memory_and_have_their_gpus_own(
    planned: list[Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "local_gpus", lambda: 0)
    share(nodes=2)
    monkeypatch.setattr(split, "local_gpus", lambda: 2)
    monkeypatch.setattr(split, "gpu_memory_bytes", lambda: 24 * 2**30)
    share(nodes=2)
    on_cpu, on_gpu = planned
    assert (on_cpu.memory_bytes, on_cpu.host_bytes, on_cpu.on_gpus) == (32 * 2**30, None, False)
    assert (on_gpu.memory_bytes, on_gpu.host_bytes, on_gpu.on_gpus) == (24 * 2**30, 32 * 2**30, True)


def test_of_machines_of_a_cluster_the_catalog_tells(planned: list[Ranks]) -> None:
    share(backend="kubernetes", nodes=2, instance_type="p4d.24xlarge")
    share(backend="kubernetes", nodes=2, instance_type="c7i.8xlarge", nproc_per_node=4)
    gpus, cpus = planned
    machine = instance("p4d.24xlarge")
    assert machine.gpu is not None
    assert (gpus.memory_bytes, gpus.host_bytes) == (machine.gpu.memory_mib * MIB, memory_mib(machine) * MIB // 8)
    assert (cpus.memory_bytes, cpus.host_bytes) == (memory_mib(instance("c7i.8xlarge")) * MIB // 4, None)


@pytest.mark.parametrize(("backend", "nodes", "machines"), [("batch", 4, 2), ("kubernetes", 4, 2), ("batch", 1, 1)])
def test_drills_rent_no_more_machines_than_they_need(
    planned: list[Ranks], backend: str, nodes: int, machines: int
) -> None:
    run = {
        "root": "s3://a-bucket/jobs",
        "cluster": {"backend": backend, "nodes": nodes, "instance_type": "p4d.24xlarge"},
        "train": {"global_batch": 64},
    }
    found = split.shares_of(BenchConfig.model_validate({"suites": ["recovery", "throughput"], "run": run}))
    assert [(share.groups[0].suite, share.nodes) for share in found] == [("throughput", nodes), ("recovery", machines)]


def test_on_this_host_drills_are_in_the_same_task_as_all_others(planned: list[Ranks]) -> None:
    (found,) = split.shares_of(BenchConfig(suites=("recovery", "utilisation"), run={"cluster": {"nodes": 2}}))
    assert (len(found.groups), found.nodes) == (2, 2)


def test_a_budget_that_nothing_would_heed_is_refused() -> None:
    config = BenchConfig(suites=("utilisation",), run={"budget": {"max_cost_usd": 50}})
    with pytest.raises(ConfigError, match=r"^run\.budget: a benchmark has none; on a cluster run\.cluster\.time_limit"):
        split.shares_of(config)
    unset = BenchConfig(suites=("utilisation",), run={"budget": {"max_cost_usd": None}})
    assert split.shares_of(unset)
