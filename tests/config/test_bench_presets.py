"""The default benchmark is written out, those of clusters fit their machines; what cannot be compared is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from convoy.benchmark.groups import Group, Ranks
from convoy.benchmark.memory_estimate import bytes_in_turns, estimate_memory
from convoy.benchmark.plan import run_of
from convoy.catalog.instances import instance
from convoy.config.benchmark import BenchConfig, add_presets_key, read_bench, resolve_bench
from convoy.config.errors import ConfigError, leaf_keys
from convoy.config.loader import configs_folder, read_overrides
from convoy.config.run import RunConfig
from convoy.launch.benchmark.split import shares_of
from convoy.launch.checks.compatibility import world
from convoy.launch.decorators import step_decorators
from tests.launch.checks.test_compatibility import refuse

FOLDER = configs_folder() / "bench"
CLUSTER = [FOLDER / "p4d.yaml", FOLDER / "p5.yaml"]

GIB = 2**30

FOR_A_STEP = 7 * GIB
"""What a gang must leave beyond the states of its cases: the planner expects 5.2 GiB of activations and logits for the
case with most of them (gpt-7b, attention not fused, on p5)."""

SMALL = "models=[gpt2-124m] run.data.sequence_length=1024"


def filled_in(path: Path, words: str = "") -> BenchConfig:
    """The file of a user who has put in the name of a bucket."""
    base = read_bench(path.read_text().replace("YOUR-BUCKET", "my-bucket"))
    return resolve_bench(base, add_presets_key(read_overrides(words)))


def groups_of(config: BenchConfig) -> list[Group]:
    return [group for share in shares_of(config) for group in share.groups]


def memory_of_a_gpu(run: RunConfig) -> int:
    gpu = instance(str(run.cluster.instance_type)).gpu
    assert gpu is not None
    return gpu.memory_mib * 2**20


def test_the_default_file_is_the_default_benchmark_but_for_its_cases_and_run() -> None:
    config = resolve_bench(read_bench((FOLDER / "default.yaml").read_text()), {})
    assert config.model_copy(update={"cases": None, "run": {}, "presets": {}}) == BenchConfig()


def test_the_default_file_writes_every_key_out() -> None:
    written = yaml.safe_load((FOLDER / "default.yaml").read_text())
    for keys in leaf_keys(BenchConfig):
        below = written
        for key in keys if keys != ("presets",) else ():
            assert key in below, ".".join(keys)
            below = below[key]


@pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.stem)
def test_a_benchmark_of_a_cluster_is_refused_until_the_bucket_is_filled_in(path: Path) -> None:
    raw = resolve_bench(read_bench(path.read_text()), {})
    assert "YOUR-BUCKET is no bucket" in str(refuse(run_of(raw, raw.models[0]), datastore="s3"))
    for group in groups_of(filled_in(path)):
        assert refuse(group.run, datastore="s3") is None, group.name


@pytest.mark.parametrize(
    ("path", "backend", "market", "adapters"),
    [(CLUSTER[0], "batch", "on_demand", 4), (CLUSTER[1], "kubernetes", "spot", 32)],
    ids=["p4d", "p5"],
)
def test_it_asks_for_the_machines_of_its_name(path: Path, backend: str, market: str, adapters: int) -> None:
    config = filled_in(path)
    run = run_of(config, config.models[0])
    assert (run.cluster.backend, run.cluster.market) == (backend, market)
    assert str(run.cluster.instance_type).startswith(f"{path.stem}.")
    asked = step_decorators(run).gang[0].arguments
    assert asked["gpu"] == 8
    assert (asked.get("efa") or int(asked["extended_resources"]["vpc.amazonaws.com/efa"])) == adapters
    assert path.read_text().count(f"--config bench configs/bench/{path.name} run ") == 2


@pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.stem)
def test_its_cases_have_room_or_are_refused_with_what_they_need(path: Path) -> None:
    groups = groups_of(filled_in(path))
    assert {group.suite for group in groups} == {
        "throughput", "scaling", "strategies", "memory", "utilisation", "sync", "checkpoint",
    }  # fmt: skip
    sharded = [spec for group in groups for spec in group.variants if spec.kind == "sharded baseline"]
    assert [spec.name for spec in sharded] == ["baseline, sharded"]
    room = memory_of_a_gpu(groups[0].run)
    refused = {each.spec.name: each.reason for group in groups for each in group.refused}
    assert set(refused) == {"baseline", "ddp", "without synchronisation"}
    for reason in refused.values():
        assert re.fullmatch(rf"needs at least \d+\.\d GiB on a rank .*, which has {room / GIB:.1f} GiB", reason)
    for group in groups:
        ranks = world(group.run)
        gang = Ranks(ranks.size, ranks.nproc_per_node, room, host_bytes=room)
        cases = [estimate_memory(spec, group.run, gang) for spec in group.variants]
        assert bytes_in_turns(case.device for case in cases if case) <= room - FOR_A_STEP, group.name


@pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.stem)
def test_every_rank_has_the_same_full_passes(path: Path) -> None:
    config = filled_in(path)
    run = run_of(config, config.models[0])
    assert run.train.global_batch % (world(run).size * run.train.micro_batch) == 0


@pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.stem)
def test_of_a_small_model_all_is_measured(path: Path) -> None:
    assert f'"{SMALL}"' in path.read_text()
    groups = groups_of(filled_in(path, SMALL))
    assert [each.spec.name for group in groups for each in group.refused] == []
    assert len(groups) == 8, "no suite is cut into several gangs, but for what cuts the model"


def test_on_more_machines_there_is_room_as_well() -> None:
    (words,) = re.findall(r'# On 8 of them: --config-value set "(.*)"', CLUSTER[1].read_text())
    groups = groups_of(filled_in(CLUSTER[1], words))
    assert {world(group.run).size for group in groups} == {64}
    assert {each.spec.name for group in groups for each in group.refused} == {
        "baseline", "ddp", "without synchronisation",
    }  # fmt: skip


TCP = {"name": "TCP", "set": {"NCCL_IB_DISABLE": 1}}
EFA: dict[str, Any] = {"name": "EFA", "set": {"NCCL_IB_DISABLE": None}}


def test_numbers_become_text_and_null_stays() -> None:
    found = resolve_bench({"sync": {"environments": [TCP, EFA], "claims": "rdma"}}, {}).sync
    assert [each.set for each in found.environments] == [{"NCCL_IB_DISABLE": "1"}, {"NCCL_IB_DISABLE": None}]


@pytest.mark.parametrize(
    ("sync", "told"),
    [
        ({"environments": [TCP]}, "must be two or more, of different names"),
        ({"environments": [TCP, TCP]}, "must be two or more, of different names"),
        ({"environments": [{"name": "A"}, {"name": "B"}]}, "must set different variables"),
        ({"share": False}, "share = false: only with environments"),
        ({"claims": "rdma"}, "only with environments"),
        ({"environments": [TCP, EFA], "pairs": 5}, "sync.pairs = 5"),
        ({"environments": [TCP, {"name": "PATH", "set": {"LD_PRELOAD": "x"}}]}, "LD_PRELOAD: must begin with NCCL_"),
    ],
)
def test_what_cannot_be_compared_is_one_line(sync: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve_bench({"sync": sync}, {})
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
