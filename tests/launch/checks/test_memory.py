"""/dev/shm and memory have room for what is staged, and what has none is refused."""

from pathlib import Path
from typing import Any

import pytest

from convoy.catalog.instances import instance
from convoy.config.engine import EngineConfig
from convoy.config.errors import ConfigError
from convoy.config.loader import read_run, resolve
from convoy.config.run import RunConfig, World
from convoy.launch.checks.memory import (
    check_host_memory,
    check_machine_memory,
    host_memory_mib,
    shared_memory_mib,
    staging_mib,
)
from convoy.model.counts import parameter_count
from tests.launch.checks.test_compatibility import refuse

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "train"
P4D = instance("p4d.24xlarge")


def on_p4d(model: str = "tiny", **cluster: Any) -> RunConfig:
    base = {"backend": "kubernetes", "nodes": 4, "instance_type": "p4d.24xlarge"}
    overrides = {"cluster": base | cluster, "train": {"global_batch": 512}}
    return resolve(read_run(f"{{root: 's3://bucket/convoy', model: {model}}}"), overrides)


def test_a_node_stages_two_copies_of_its_share_of_the_state() -> None:
    config = on_p4d("llama-7b")
    whole = 12 * parameter_count(config.model)  # type: ignore[arg-type]
    staged = staging_mib(config, World(4, 8))
    assert staged is not None
    assert staged * 2**20 == pytest.approx(2 * whole / 4 * 1.1, rel=0.001)


def test_dev_shm_is_an_eighth_of_the_memory_or_as_much_as_a_large_model_stages() -> None:
    assert shared_memory_mib(on_p4d(), World(4, 8), P4D) == P4D.memory_gib * 1024 // 8
    config = on_p4d("gpt-175b", nodes=16)
    asked, staged = shared_memory_mib(config, World(16, 8), P4D), staging_mib(config, World(16, 8))
    assert staged is not None
    assert asked == staged + 1024 > P4D.memory_gib * 1024 // 8
    assert asked < P4D.task_memory_mib


def test_a_model_of_unknown_size_is_not_judged() -> None:
    custom = "{build: 'm:build', vocab_size: 50000, max_sequence_length: 512}"
    config = on_p4d(custom, shared_memory_mib=64)
    assert staging_mib(config, World(4, 8)) is None
    assert shared_memory_mib(on_p4d(custom), World(4, 8), P4D) == P4D.memory_gib * 1024 // 8
    check_machine_memory(config, World(4, 8), P4D)
    check_host_memory(config, 0, 1)


@pytest.mark.parametrize(
    ("model", "cluster", "told"),
    [
        ("gpt-175b", {"nodes": 2}, "cluster.nodes = 2: on 2 nodes each one stages "),
        ("llama-7b", {"shared_memory_mib": 1024}, "cluster.shared_memory_mib = 1024: must be at least "),
        ("tiny", {"shared_memory_mib": 2_000_000}, "cluster.shared_memory_mib = 2000000: must be at most the memory"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_key(model: str, cluster: dict[str, Any], told: str) -> None:
    refused = refuse(on_p4d(model, **cluster), "s3")
    assert refused is not None
    assert refused.startswith(told)


def test_states_that_are_offloaded_count_in_host_memory() -> None:
    """16 bytes of 175B parameters on 6 nodes are 434 GiB of each, next to 716 GiB of staged copies, of 979 GiB."""
    config = on_p4d("gpt-175b", nodes=6)
    check_machine_memory(config, World(6, 8), P4D)
    offloaded = config.model_copy(update={"parallel": config.parallel.model_copy(update={"cpu_offload": True})})
    zero = EngineConfig(name="deepspeed", settings={"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})
    for each in (offloaded, config.model_copy(update={"engine": zero})):
        with pytest.raises(ConfigError, match=r"on 6 nodes each one stages 715.5 GiB of the state and needs 1,182"):
            check_machine_memory(each, World(6, 8), P4D)


def test_a_local_run_is_refused_where_this_host_cannot_hold_its_state() -> None:
    config = resolve(read_run("{model: llama-7b}"), {})
    with pytest.raises(ConfigError, match="model = llama-7b: the state and two copies of it take "):
        check_host_memory(config, 0, 64 * 1024)
    with pytest.raises(ConfigError, match="two copies of the state take"):
        check_host_memory(config, 8, 64 * 1024)
    check_host_memory(config, 8, 256 * 1024)
    check_host_memory(RunConfig(), 0, 2048)


def test_replicas_on_this_host_need_their_memory_each() -> None:
    model, ranks = "{model: gpt2-xl}", {"nodes": 2, "nproc_per_node": 4}
    whole = resolve(read_run(model), {"cluster": ranks, "parallel": {"strategy": "ddp"}})
    halves = resolve(read_run(model), {"cluster": ranks, "parallel": {"strategy": "hsdp"}})
    with pytest.raises(ConfigError, match=r"model = gpt2-xl: 8 times the state and two copies of it take 220.5 GiB"):
        check_host_memory(whole, 0, 128 * 1024)
    check_host_memory(whole, 8, 128 * 1024)
    check_host_memory(halves, 0, 128 * 1024)


def test_the_host_s_memory_is_at_most_its_container_s(tmp_path: Path) -> None:
    (tmp_path / "limit").write_text(f"{512 * 2**20}\n")
    (tmp_path / "none").write_text("max\n")
    assert host_memory_mib(tmp_path / "limit") == 512
    assert host_memory_mib(tmp_path / "none") == host_memory_mib(tmp_path / "absent") > 512
