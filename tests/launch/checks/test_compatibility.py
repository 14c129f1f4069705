"""What cannot work is refused before anything starts, with the key, the value and the reason."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.catalog.prices import SHIPPED
from convoy.config.errors import ConfigError
from convoy.config.loader import merged, resolve
from convoy.config.run import RunConfig, World
from convoy.config.train import BudgetConfig
from convoy.launch.checks.compatibility import check, refusals, world
from convoy.launch.pricing import instance_price
from tests.launch.checks.refusal import refuse

BATCH = {"backend": "batch", "nodes": 2, "instance_type": "p4d.24xlarge"}
KUBERNETES = {"backend": "kubernetes", "nodes": 2, "instance_type": "p4d.24xlarge"}


def run(**over: Any) -> RunConfig:
    return resolve({"root": "s3://bucket/convoy", "train": {"global_batch": 64}}, over)


def on(cluster: dict[str, Any], **more: Any) -> RunConfig:
    return run(cluster=merged(cluster, more))


def test_the_default_job_is_fine() -> None:
    check(RunConfig(), datastore="local")


@pytest.mark.parametrize("cluster", [BATCH, KUBERNETES, BATCH | {"nodes": 1}, KUBERNETES | {"market": "spot"}])
def test_what_the_matrix_allows_is_let_through(cluster: dict[str, Any]) -> None:
    assert refuse(on(cluster), datastore="s3") is None


@pytest.mark.parametrize("nodes", [1, 2, 16])
def test_batch_on_spot_is_refused_for_any_number_of_nodes(nodes: int) -> None:
    reason = refuse(on(BATCH, nodes=nodes, market="spot"))
    assert reason is not None
    assert reason.startswith("cluster.market = spot: AWS Batch runs no multi-node jobs on spot")
    assert "kubernetes" in reason


@pytest.mark.parametrize("market", ["on_demand", "capacity_block"])
def test_batch_on_other_markets_is_fine(market: str) -> None:
    assert refuse(on(BATCH, market=market)) is None


def test_a_jobset_of_one_pod_is_refused() -> None:
    assert str(refuse(on(KUBERNETES, nodes=1))).startswith("cluster.nodes = 1: must be at least 2")


@pytest.mark.parametrize("cluster", [BATCH, KUBERNETES])
def test_a_remote_backend_needs_an_instance_type(cluster: dict[str, Any]) -> None:
    reason = str(refuse(on(cluster, instance_type=None)))
    assert reason.startswith(f"cluster.instance_type: required with cluster.backend = {cluster['backend']}")
    assert "p4d.24xlarge" in reason


def test_an_unknown_instance_type_is_refused_with_the_nearest() -> None:
    assert "did you mean p4d.24xlarge?" in str(refuse(on(BATCH, instance_type="p4d.24xlage")))


def test_more_ranks_than_gpus_are_refused() -> None:
    reason = refuse(on(BATCH, nproc_per_node=9))
    assert reason == "cluster.nproc_per_node = 9: must be at most the GPUs of a p4d.24xlarge, 8"
    assert refuse(on(BATCH, nproc_per_node=8)) is None


@pytest.mark.parametrize(
    ("cluster", "key", "value"),
    [
        (BATCH, "persistent_volume_claims", {"fsx": "/fsx"}),
        (BATCH, "tolerations", [{"key": "spot", "operator": "Exists"}]),
        (BATCH, "namespace", "training"),
        (KUBERNETES, "host_volumes", ["/fsx"]),
        (KUBERNETES, "queue", "gpus"),
    ],
)
def test_a_key_of_the_other_backend_is_refused(cluster: dict[str, Any], key: str, value: Any) -> None:
    reason = str(refuse(on(cluster, **{key: value})))
    assert reason.startswith(f"cluster.{key} = ")
    assert reason.endswith(f"not {cluster['backend']}")


@pytest.mark.parametrize("cluster", [BATCH, KUBERNETES])
def test_a_remote_backend_needs_the_s3_datastore(cluster: dict[str, Any]) -> None:
    reason = str(refuse(on(cluster), datastore="local"))
    assert reason.startswith("METAFLOW_DEFAULT_DATASTORE = local: must be s3")
    assert refuse(on(cluster), datastore=None) is None


def test_a_time_limit_that_metaflow_refuses_is_refused() -> None:
    assert str(refuse(on(BATCH, time_limit_hours=0.01))).startswith(
        "cluster.time_limit_hours = 0.01: must be at least 60"
    )


def test_fewer_sequences_than_ranks_are_refused() -> None:
    config = run(cluster={"nodes": 2, "nproc_per_node": 4}, train={"global_batch": 4})
    assert refuse(config) == (
        "train.global_batch = 4: must be at least the number of ranks, 8 (2 nodes \N{MULTIPLICATION SIGN} 4)"
    )


def test_as_many_sequences_as_ranks_are_fine() -> None:
    assert refuse(run(cluster={"nodes": 2, "nproc_per_node": 4}, train={"global_batch": 8})) is None


@pytest.mark.parametrize(("shard", "fine"), [(2, True), (4, True), (8, True), (3, False), (16, False)])
def test_shard_size_must_divide_the_ranks(shard: int, fine: bool) -> None:
    config = run(cluster={"nodes": 2, "nproc_per_node": 4}, parallel={"strategy": "hsdp", "shard_size": shard})
    reason = refuse(config)
    assert (reason is None) is fine
    assert fine or str(reason).startswith(f"parallel.shard_size = {shard}: must divide the number of ranks, 8")


def test_a_cost_limit_without_a_price_is_refused_with_both_keys() -> None:
    reason = str(refuse(run(cluster=BATCH | {"region": "af-south-1"}, budget={"max_cost_usd": 100})))
    assert reason.startswith("budget.max_cost_usd = 100: ")
    assert "cluster.instance_type = p4d.24xlarge" in reason
    assert "af-south-1" in reason


def test_a_local_run_has_no_cost_limit() -> None:
    reason = str(refuse(run(budget={"max_cost_usd": 100})))
    assert reason == "budget.max_cost_usd = 100: cluster.backend = local has no price; use budget.max_hours instead"


def test_a_cost_limit_with_a_price_is_fine() -> None:
    assert refuse(run(cluster=BATCH, budget={"max_cost_usd": 100})) is None


def test_a_capacity_block_without_a_price_is_fine_without_a_cost_limit() -> None:
    config = on(BATCH, instance_type="p5en.48xlarge", market="capacity_block")
    assert instance_price(config, SHIPPED) is None
    assert refuse(config) is None


def test_a_cluster_preset_can_be_tried_locally() -> None:
    config = on(KUBERNETES, market="spot", persistent_volume_claims={"fsx": "/fsx"}, backend="local")
    assert refuse(config, datastore="local") is None


def test_check_raises_what_refuse_returns() -> None:
    config = on(BATCH, market="spot")
    with pytest.raises(ConfigError) as raised:
        check(config)
    assert str(raised.value) == refuse(config)


def test_a_plan_is_told_all_reasons_of_machines_and_none_of_places() -> None:
    config = on(BATCH, market="spot", nproc_per_node=9, region="mars-1").model_copy(
        update={"root": None, "budget": BudgetConfig(max_cost_usd=1.0)}
    )
    told = refusals(config, 0, 0)
    assert [why.partition(" ")[0] for why in told] == [
        "cluster.market", "cluster.nproc_per_node", "budget.max_cost_usd",
    ]  # fmt: skip
    assert refuse(config) == told[0]


def test_a_plan_is_told_that_a_local_run_lacks_gpus_and_memory() -> None:
    config = run(cluster={"nodes": 2, "nproc_per_node": 1}, parallel={"cpu_offload": True})
    on_cpus, on_a_gpu = refusals(config, 0, 1), refusals(config, 1, 2**20)
    assert [why.partition(" ")[0] for why in on_cpus] == ["parallel.cpu_offload", "model"]
    assert [why.partition(" ")[0] for why in on_a_gpu] == ["cluster.nodes"]


def test_every_reason_is_one_line() -> None:
    bad = [
        on(BATCH, market="spot"),
        on(KUBERNETES, nodes=1),
        run(cluster=BATCH, root=None),
        on(BATCH, queue="q", nproc_per_node=9),
    ]
    assert all("\n" not in str(refuse(config)) for config in bad)


def test_remote_ranks_are_the_gpus_of_the_instance() -> None:
    assert world(on(BATCH, nodes=4)) == (4, 8)
    assert world(on(BATCH, instance_type="g5.xlarge", nodes=3)) == (3, 1)
    assert world(on(BATCH, nproc_per_node=2)) == (2, 2)


@pytest.mark.parametrize(("nodes", "gpus", "per_node"), [(2, 0, 1), (2, 8, 4), (2, 3, 1), (4, 2, 1), (1, 8, 8)])
def test_local_ranks_share_the_gpus_of_the_host(nodes: int, gpus: int, per_node: int) -> None:
    assert world(run(cluster={"nodes": nodes}), local_gpus=gpus) == (nodes, per_node)


def test_gpus_of_this_host_do_not_count_for_a_remote_backend() -> None:
    assert world(on(BATCH), local_gpus=1) == (2, 8)


@given(nodes=st.integers(1, 64), per_node=st.integers(1, 8))
def test_the_world_is_nodes_times_ranks(nodes: int, per_node: int) -> None:
    found = world(run(cluster={"nodes": nodes, "nproc_per_node": per_node}))
    assert found.size == nodes * per_node
    assert str(found).startswith(f"{found.size} ({nodes} node")


def test_a_single_node_is_not_called_nodes() -> None:
    assert str(World(1, 8)) == "8 (1 node \N{MULTIPLICATION SIGN} 8)"
