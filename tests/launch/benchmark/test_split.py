"""How a benchmark is divided over machines, what memory its ranks have, and its dry run in words."""

from typing import Any

import pytest

from convoy.benchmark.groups import Group, Ranks, VariantSpec
from convoy.catalog.instances import instance
from convoy.config.benchmark import BenchConfig, EnvironmentConfig, MeasureConfig, RecoveryConfig, SyncConfig
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.launch.benchmark import split
from convoy.launch.benchmark.split import Share, describe_bench, planned_block_seconds, shares_of
from convoy.launch.checks.memory import MIB
from tests.benchmark.benches import a_group


@pytest.fixture
def planned_for(monkeypatch: pytest.MonkeyPatch) -> list[Ranks]:
    """For which ranks benchmarks were planned."""
    found: list[Ranks] = []
    plan = split.plan_groups

    def noted(config: BenchConfig, runs: Any, ranks: Ranks) -> list[Group]:
        found.append(ranks)
        return plan(config, runs, ranks)

    monkeypatch.setattr(split, "plan_groups", noted)
    monkeypatch.setattr(split, "host_memory_mib", lambda: 64 * 1024)
    return found


def share(**cluster: object) -> None:
    run = {"root": "s3://a-bucket/jobs", "cluster": cluster, "train": {"global_batch": 16}}
    split.shares_of(BenchConfig.model_validate({"suites": ["utilisation"], "run": run}))


def test_on_this_host_ranks_share_its_memory_and_have_their_gpus_own(
    planned_for: list[Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "local_gpus", lambda: 0)
    share(nodes=2)
    monkeypatch.setattr(split, "local_gpus", lambda: 2)
    monkeypatch.setattr(split, "gpu_memory_bytes", lambda: 24 * 2**30)
    share(nodes=2)
    on_cpu, on_gpu = planned_for
    assert (on_cpu.memory_bytes, on_cpu.host_bytes, on_cpu.on_gpus) == (32 * 2**30, None, False)
    assert (on_gpu.memory_bytes, on_gpu.host_bytes, on_gpu.on_gpus) == (24 * 2**30, 32 * 2**30, True)


def test_of_machines_of_a_cluster_the_catalog_tells(planned_for: list[Ranks]) -> None:
    share(backend="kubernetes", nodes=2, instance_type="p4d.24xlarge")
    share(backend="kubernetes", nodes=2, instance_type="c7i.8xlarge", nproc_per_node=4)
    gpus, cpus = planned_for
    machine = instance("p4d.24xlarge")
    assert machine.gpu is not None
    assert (gpus.memory_bytes, gpus.host_bytes) == (machine.gpu.memory_mib * MIB, machine.task_memory_mib * MIB // 8)
    assert (cpus.memory_bytes, cpus.host_bytes) == (instance("c7i.8xlarge").task_memory_mib * MIB // 4, None)


@pytest.mark.parametrize(("backend", "nodes", "machines"), [("batch", 4, 2), ("kubernetes", 4, 2), ("batch", 1, 1)])
def test_drills_rent_no_more_machines_than_they_need(
    planned_for: list[Ranks], backend: str, nodes: int, machines: int
) -> None:
    run = {
        "root": "s3://a-bucket/jobs",
        "cluster": {"backend": backend, "nodes": nodes, "instance_type": "p4d.24xlarge"},
        "train": {"global_batch": 64},
    }
    found = split.shares_of(BenchConfig.model_validate({"suites": ["recovery", "throughput"], "run": run}))
    assert [(share.groups[0].suite, share.nodes) for share in found] == [("throughput", nodes), ("recovery", machines)]


def test_on_this_host_drills_are_in_the_same_task_as_all_others(planned_for: list[Ranks]) -> None:
    (found,) = split.shares_of(BenchConfig(suites=("recovery", "utilisation"), run={"cluster": {"nodes": 2}}))
    assert (len(found.groups), found.nodes) == (2, 2)


def test_a_budget_that_nothing_would_heed_is_refused() -> None:
    config = BenchConfig(suites=("utilisation",), run={"budget": {"max_cost_usd": 50}})
    with pytest.raises(ConfigError, match=r"^run\.budget: a benchmark has none; on a cluster run\.cluster\.time_limit"):
        split.shares_of(config)
    unset = BenchConfig(suites=("utilisation",), run={"budget": {"max_cost_usd": None}})
    assert split.shares_of(unset)


P4D: dict[str, Any] = {"backend": "batch", "nodes": 4, "instance_type": "p4d.24xlarge"}

TWO = (VariantSpec(name="one"), VariantSpec(name="other"))
SLOW = MeasureConfig(rounds=20, block_seconds=1.5)


def planned(*suites: str, **cluster: Any) -> tuple[list[Share], RunConfig]:
    run = {"root": "s3://a-bucket/jobs", "cluster": cluster, "train": {"global_batch": 64}}
    shares = shares_of(BenchConfig.model_validate({"suites": suites, "run": run}))
    return shares, shares[0].groups[0].run


def lines(shares: list[Share], run: RunConfig) -> dict[str, str]:
    pairs = [line.partition(":") for line in describe_bench(shares, run).splitlines()]
    return {key: text.strip() for key, _, text in pairs}


def shares(*nodes: int) -> list[Share]:
    group = a_group("s3://a-bucket/jobs", *TWO).model_copy(update={"measure": SLOW})
    return [Share(nodes=count, groups=(group,)) for count in nodes]


def on_p4d(**cluster: Any) -> RunConfig:
    run = {"root": "s3://a-bucket/jobs", "cluster": {**P4D, **cluster}, "train": {"global_batch": 64}}
    return RunConfig.model_validate(run)


def test_each_group_has_a_line_and_all_together_their_machines_and_price() -> None:
    said = lines(*planned("throughput", "checkpoint", "recovery", **P4D))
    assert said["throughput-tiny"].startswith("32 (4 nodes \N{MULTIPLICATION SIGN} 8) ranks: baseline; ours")
    assert said["machine"].startswith("4 \N{MULTIPLICATION SIGN} p4d.24xlarge: 8 \N{MULTIPLICATION SIGN} A100")
    assert said["price"].startswith("87.83 USD/h for a gang; 21.96 a machine and hour, on_demand in us-east-1, 2026-")
    # 4 + 4 machines, and two for drills
    assert said["in all"] == (
        "3 groups, 3 at the same time, each on machines of its own: 10 machines, 219.58 USD/h; "
        "with run --max-workers 1 one after the other: at most 4 machines, 87.83 USD/h"
    )


def test_machines_are_counted_for_as_many_groups_as_metaflow_has_at_work_at_once() -> None:
    said = lines(shares(1, *[4] * 18), on_p4d())["in all"]
    assert said.startswith("19 groups, 16 at the same time, each on machines of its own: 64 machines, 1405.")
    assert lines(shares(4), on_p4d())["in all"] == "1 group: 4 machines, 87.83 USD/h"
    unpriced = lines(shares(4, 4), on_p4d(region="af-south-1"))
    assert unpriced["price"] == "unknown, on_demand in af-south-1"
    assert unpriced["in all"].endswith(": 8 machines; with run --max-workers 1 one after the other: at most 4 machines")


def test_blocks_that_count_take_so_long_all_together_and_in_the_longest_group() -> None:
    both = [*shares(4), *planned("recovery", **P4D)[0]]
    first = both[0].groups[0]
    long = first.model_copy(update={"measure": MeasureConfig(rounds=40, block_seconds=1.5)})
    both.append(Share(nodes=4, groups=(long,)))
    # 2 cases of 20 blocks of 1.5 s, and 2 of 40
    assert lines(both, on_p4d())["time"] == (
        "about 3 m 00 s of blocks that count, 2 m 00 s in the longest group; "
        "machines, building, warm-up, drills, and blocks whose few steps take longer come on top"
    )


def test_the_cost_lies_between_that_of_the_blocks_and_that_of_the_time_limit() -> None:
    """Blocks of a minute on 4 + 4 machines, of 21.9576 USD an hour, and 5 hours of each."""
    run = on_p4d(time_limit_hours=5, retries=0)
    assert lines(shares(4, 4), run)["cost"] == (
        "2.93 USD for these blocks; at most 878.30 USD, if each of the 2 tasks uses its time limit of 5 h"
    )
    assert lines(shares(4), on_p4d(time_limit_hours=5, retries=2))["cost"].endswith(
        "at most 1,317.46 USD, if the task uses its time limit of 5 h in each of 3 attempts"
    )
    assert "cost" not in lines(shares(4), on_p4d(region="af-south-1"))


def test_on_this_host_groups_take_turns_and_nothing_is_paid_for() -> None:
    said = lines(*planned("throughput", "scaling", nodes=2))
    assert (said["machine"], said["in all"]) == ("this host", "2 groups, one after the other")
    assert "price" not in said
    assert "cost" not in said
    assert "longest" not in said["time"]


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 60.0),
        ({"recovery": RecoveryConfig()}, 0.0),
        (
            {
                "variants": TWO[:1],
                "compared": SyncConfig(
                    pairs=7, environments=(EnvironmentConfig(name="a"), EnvironmentConfig(name="b", set={"FI_X": "1"}))
                ),
            },
            7 * 60.0,
        ),
    ],
    ids=["cases in one gang", "drills", "gangs in turns"],
)
def test_time_is_that_of_all_blocks(changes: dict[str, Any], seconds: float) -> None:
    group: Group = shares(1)[0].groups[0].model_copy(update=changes)
    assert planned_block_seconds(group) == seconds
