"""What cannot work is refused before anything starts, with the key, the value and the reason."""

import re
from typing import Any

import pytest

from convoy.config.errors import ConfigError
from convoy.config.loader import merge_config, resolve
from convoy.config.run import RunConfig
from convoy.config.train import BudgetConfig
from convoy.launch.checks.compatibility import (
    check_budget,
    check_run,
    check_same_data,
    check_same_model,
    machine_refusals,
    world,
)


def refuse(config: RunConfig, datastore: str | None = None, local_gpus: int = 0) -> str | None:
    """In one line; None: nothing speaks against it."""
    try:
        check_run(config, datastore, local_gpus)
        check_budget(config)
    except ConfigError as error:
        return str(error)
    return None


BATCH = {"backend": "batch", "nodes": 2, "instance_type": "p4d.24xlarge"}
KUBERNETES = {"backend": "kubernetes", "nodes": 2, "instance_type": "p4d.24xlarge"}


def run(**over: Any) -> RunConfig:
    return resolve({"root": "s3://bucket/convoy", "train": {"global_batch": 64}}, over)


def on(cluster: dict[str, Any], **more: Any) -> RunConfig:
    return run(cluster=merge_config(cluster, more))


@pytest.mark.parametrize(
    ("config", "datastore"),
    [
        (RunConfig(), "local"),
        (on(BATCH), "s3"),
        (on(BATCH, nodes=1, nproc_per_node=8), None),
        (on(KUBERNETES, market="spot"), "s3"),
        (on(KUBERNETES, market="spot", persistent_volume_claims={"fsx": "/fsx"}, backend="local"), "local"),
        (on(BATCH, instance_type="p5en.48xlarge", market="capacity_block"), None),  # whose price is not known
        (run(cluster=KUBERNETES, checkpoint={"tiers": ["s3://other/convoy"]}), None),
    ],
)
def test_what_can_work_is_let_through(config: RunConfig, datastore: str | None) -> None:
    assert refuse(config, datastore) is None


NOT_SEEN = "root = {root}: must be an s3:// prefix or a gs:// prefix or a folder "


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (on(KUBERNETES, nodes=1), "cluster.nodes = 1: must be at least 2"),
        (on(BATCH, instance_type=None), "cluster.instance_type: required with cluster.backend = batch; known: "),
        (on(BATCH, instance_type="p4d.24xlage"), "cluster.instance_type = p4d.24xlage: .*did you mean p4d.24xlarge"),
        (on(BATCH, nproc_per_node=9), "cluster.nproc_per_node = 9: must be at most the GPUs of a p4d.24xlarge, 8"),
        (on(BATCH, persistent_volume_claims={"fsx": "/fsx"}), "cluster.persistent_volume_claims = .* not batch$"),
        (on(BATCH, tolerations=[{"key": "spot", "operator": "Exists"}]), "cluster.tolerations = .* not batch$"),
        (on(KUBERNETES, queue="gpus"), "cluster.queue = gpus: only with cluster.backend = batch, not kubernetes"),
        (on(BATCH, time_limit_hours=0.01), "cluster.time_limit_hours = 0.01: must be at least 60"),
        (
            run(cluster={"nodes": 2, "nproc_per_node": 4}, train={"global_batch": 4}),
            "train.global_batch = 4: must be at least the number of ranks, 8 .2 nodes \N{MULTIPLICATION SIGN} 4.$",
        ),
        (
            run(cluster={"nproc_per_node": 8, "nodes": 1}, train={"global_batch": 4}),
            "train.global_batch = 4: must be at least the number of ranks, 8 .1 node \N{MULTIPLICATION SIGN} 8.$",
        ),
        (
            run(cluster=BATCH | {"region": "af-south-1"}, budget={"max_cost_usd": 100}),
            "budget.max_cost_usd = 100: .*cluster.instance_type = p4d.24xlarge .*af-south-1",
        ),
        (
            run(budget={"max_cost_usd": 100}),
            "budget.max_cost_usd = 100: cluster.backend = local has no price; use budget.max_hours instead$",
        ),
        (run(cluster=BATCH | {"host_volumes": ["/fsx"]}, root=None), NOT_SEEN.format(root="null")),
        (run(cluster=BATCH | {"host_volumes": ["/fsx"]}, root="/fsxtra"), NOT_SEEN.format(root="/fsxtra")),
        (run(cluster=BATCH | {"host_volumes": ["/lustre:/fsx"]}, root="/lustre"), NOT_SEEN.format(root="/lustre")),
        (run(cluster=BATCH, root=".convoy"), NOT_SEEN.format(root=".convoy")),
        (run(cluster=KUBERNETES, root="/fsx"), NOT_SEEN.format(root="/fsx")),
        (
            run(cluster=KUBERNETES, checkpoint={"tiers": ["s3://other/convoy", "/scratch"]}),
            "checkpoint.tiers = /scratch: must be an s3:// prefix or a gs:// prefix or a folder ",
        ),
        (
            run(checkpoint={"tiers": ["s3://bucket/convoy/"]}),
            "checkpoint.tiers = s3://bucket/convoy/: must be another place than root, which is the first tier$",
        ),
        (run(checkpoint={"tiers": ["s3://under_score/convoy"]}), "checkpoint.tiers = .*: under_score is no bucket"),
        (run(root="gs://b/c"), "root = gs://b/c: b is no bucket; .* hyphens and underscores"),
        (
            run(root="gs://my_bucket/c", checkpoint={"store": {"sse_kms_key_id": "k"}}),
            "checkpoint.store.sse_kms_key_id = k: applies to s3:// only; for gs:// set it on the bucket",
        ),
        *((run(root=f"s3://{b}/c"), f"root = s3://{b}/c: {b} is no bucket") for b in ("YOUR-BUCKET", "ab", "")),
        (
            run(data={"corpus": {"kind": "files", "path": "s3://YOUR-BUCKET/corpus/"}}),
            "data.corpus.path = s3://YOUR-BUCKET/corpus/",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_the_key_and_the_value(config: RunConfig, reason: str) -> None:
    assert re.match(reason, str(refuse(config)))


@pytest.mark.parametrize("cluster", [BATCH, KUBERNETES])
def test_a_remote_backend_needs_the_s3_datastore(cluster: dict[str, Any]) -> None:
    reason = str(refuse(on(cluster), datastore="local"))
    assert reason.startswith("METAFLOW_DEFAULT_DATASTORE = local: must be s3")


@pytest.mark.parametrize("nodes", [1, 16])
def test_batch_on_spot_is_refused_for_any_number_of_nodes(nodes: int) -> None:
    reason = refuse(on(BATCH, nodes=nodes, market="spot"))
    assert reason is not None
    assert reason.startswith("cluster.market = spot: AWS Batch runs no multi-node jobs on spot")
    assert "kubernetes" in reason


@pytest.mark.parametrize(("shard", "fine"), [(2, True), (4, True), (8, True), (3, False), (16, False)])
def test_shard_size_must_divide_the_ranks(shard: int, fine: bool) -> None:
    config = run(cluster={"nodes": 2, "nproc_per_node": 4}, parallel={"strategy": "hsdp", "shard_size": shard})
    reason = refuse(config)
    assert (reason is None) is fine
    assert fine or str(reason).startswith(f"parallel.shard_size = {shard}: must divide the number of ranks, 8")


def test_a_plan_is_told_all_reasons_of_machines_and_none_of_places() -> None:
    config = on(BATCH, market="spot", nproc_per_node=9, region="mars-1").model_copy(
        update={"root": None, "budget": BudgetConfig(max_cost_usd=1.0)}
    )
    told = machine_refusals(config, 0, 0)
    assert [why.partition(" ")[0] for why in told] == [
        "cluster.market", "cluster.nproc_per_node", "budget.max_cost_usd",
    ]  # fmt: skip
    assert refuse(config) == told[0]


def test_a_plan_is_told_that_a_local_run_lacks_gpus_and_memory() -> None:
    config = run(cluster={"nodes": 2, "nproc_per_node": 1}, parallel={"cpu_offload": True})
    on_cpus, on_a_gpu = machine_refusals(config, 0, 1), machine_refusals(config, 1, 2**20)
    assert [why.partition(" ")[0] for why in on_cpus] == ["parallel.cpu_offload", "model"]
    assert [why.partition(" ")[0] for why in on_a_gpu] == ["cluster.nodes"]


@pytest.mark.parametrize(
    ("config", "gpus", "ranks"),
    [
        (on(BATCH, nodes=4), 0, (4, 8)),
        (on(BATCH, instance_type="g5.xlarge", nodes=3), 0, (3, 1)),
        (on(BATCH, nproc_per_node=2), 0, (2, 2)),
        (run(cluster={"nodes": 2}), 0, (2, 1)),  # local ones share the GPUs of the host
        (run(cluster={"nodes": 2}), 3, (2, 1)),
        (run(cluster={"nodes": 2}), 8, (2, 4)),
        (run(cluster={"nodes": 4}), 2, (4, 1)),
    ],
)
def test_ranks_are_the_gpus_of_the_instance_or_a_share_of_the_host_s(
    config: RunConfig, gpus: int, ranks: tuple[int, int]
) -> None:
    assert world(config, gpus) == ranks


@pytest.mark.parametrize(
    "cluster",
    [
        BATCH | {"host_volumes": ["/fsx"]},
        BATCH | {"host_volumes": ["/data", "/mnt/lustre:/fsx"]},
        BATCH | {"host_volumes": ["/fsx/"]},
        KUBERNETES | {"persistent_volume_claims": {"claim": "/fsx"}},
    ],
)
@pytest.mark.parametrize("root", ["/fsx", "/fsx/convoy"])
def test_a_root_on_a_mounted_volume_is_fine(cluster: dict[str, Any], root: str) -> None:
    assert refuse(run(cluster=cluster, root=root, checkpoint={"root_is_shared": True})) is None
    reason = str(refuse(run(cluster=cluster, root=root)))
    assert reason.startswith(
        f"root = {root}: must be an s3:// prefix or a gs:// prefix, or one folder that every machine of the gang sees"
    )
    assert reason.endswith("set checkpoint.root_is_shared=true")


FILES = {"data": {"corpus": {"kind": "files", "path": "/corpus"}}}
SHARDS = {"data": {"corpus": {"kind": "shards", "path": "/shards", "vocab_size": 500}}}
CUSTOM = {"model": {"build": "a.b:c", "vocab_size": 4096, "max_sequence_length": 256}}


def kept(tree: dict[str, Any]) -> dict[str, Any]:
    return resolve(tree, {}).model_dump(mode="json")


def changed(base: dict[str, Any], over: dict[str, Any]) -> RunConfig:
    return resolve(base, over)


@pytest.mark.parametrize("base", [{}, FILES, SHARDS, CUSTOM])
def test_the_same_configuration_goes_on(base: dict[str, Any]) -> None:
    check_same_data("a", kept(base), changed(base, {}))
    check_same_model("a", kept(base), changed(base, {}))


@pytest.mark.parametrize(
    ("base", "over", "told"),
    [
        ({}, {"sequence_length": 128}, "data.sequence_length = 128: job a was started with 256"),
        ({}, {"respect_documents": True}, "data.respect_documents = true: job a was started with false"),
        ({}, {"validation_fraction": 0.1}, "data.validation_fraction = 0.1: job a was started with 0.05"),
        ({}, {"tokenizer": {"vocab_size": 300}}, "data.tokenizer.vocab_size = 300: job a was started with 4096"),
        ({}, {"tokenizer": {"kind": "bytes"}}, "data.tokenizer.kind = bytes: job a was started with bpe"),
        ({}, {"corpus": {"kind": "synthetic"}}, "data.corpus.kind = synthetic: job a was started with stdlib"),
        (FILES, {"corpus": {"format": "jsonl"}}, "data.corpus.format = jsonl: job a was started with text"),
    ],
)
def test_other_sequences_are_refused_with_the_key_and_both_values(
    base: dict[str, Any], over: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_same_data("a", kept(base), changed(base, {"data": over}))
    assert str(refused.value) == f"{told}; keep that, or name a new job"


@pytest.mark.parametrize(
    ("base", "over"),
    [
        (FILES, {"corpus": {"path": "/elsewhere"}}),
        (FILES, {"corpus": {"suffixes": [".text"]}}),
        ({}, {"cache": "/cache"}),
        (SHARDS, {"tokenizer": {"kind": "bytes"}}),
    ],
)
def test_what_may_lead_to_the_same_content_is_left_to_the_fingerprint(
    base: dict[str, Any], over: dict[str, Any]
) -> None:
    check_same_data("a", kept(base), changed(base, {"data": over}))


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ({"n_layers": 5}, "model.n_layers = 5: job a was started with 4"),
        ({"tied_embeddings": False}, "model.tied_embeddings = false: job a was started with true"),
        (CUSTOM["model"], "model = custom: job a was started with tiny"),
    ],
)
def test_weights_that_do_not_fit_are_refused(over: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_same_model("a", kept({}), changed({}, {"model": over}))
    assert str(refused.value) == f"{told}; keep that, or name a new job"


def test_name_and_dropout_of_a_model_may_change() -> None:
    check_same_model("a", kept({}), changed({}, {"model": {"name": "other", "dropout": 0.1}}))


def test_a_key_that_an_older_version_did_not_have_is_no_difference() -> None:
    old = kept({})
    del old["data"]["respect_documents"], old["model"]["rope_theta"]
    check_same_data("a", old, changed({}, {"data": {"respect_documents": True}}))
    check_same_model("a", old, changed({}, {}))
