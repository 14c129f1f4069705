"""The dry run says in words what would be launched."""

from typing import Any

import pytest

from convoy.config.loader import read_overrides, read_run, resolve
from convoy.config.run import RunConfig
from convoy.launch.dry_run import describe


def lines(config: RunConfig, local_gpus: int = 0) -> dict[str, str]:
    pairs = [line.partition(":") for line in describe(config, local_gpus).splitlines()]
    return {key: text.strip() for key, _, text in pairs}


def spot(**cluster: Any) -> RunConfig:
    base = {"backend": "kubernetes", "nodes": 4, "instance_type": "p4d.24xlarge", "market": "spot"}
    return resolve({"root": "s3://bucket/convoy", "train": {"global_batch": 512}}, {"cluster": base | cluster})


def test_a_cluster_run_names_backend_machines_and_ranks() -> None:
    said = lines(spot())
    assert said["backend"] == "Kubernetes, a JobSet of 4 pods"
    assert said["ranks"] == "32 (4 nodes \N{MULTIPLICATION SIGN} 8)"
    assert "4 \N{MULTIPLICATION SIGN} p4d.24xlarge: 8 \N{MULTIPLICATION SIGN} A100 of 40 GiB" in said["machine"]
    assert said["machine"].endswith("400 Gbit/s, 4 EFA")
    assert said["root"] == "s3://bucket/convoy"


def test_a_price_is_shown_with_its_range_region_date_and_source() -> None:
    said = lines(spot())["price"]
    assert said.startswith("39.60 USD/h in all; 9.90 (median; zones 6.53 to 13.99)")
    assert "spot in us-east-1, 2026-07-09 (skypilot-catalog" in said


def test_an_on_demand_price_is_one_figure() -> None:
    said = lines(spot(market="on_demand"))["price"]
    assert said.startswith("87.83 USD/h in all; 21.96 a machine and hour, on_demand in us-east-1, 2026-11-09")


def test_an_unknown_price_is_said_to_be_unknown() -> None:
    assert lines(spot(region="eu-north-1"))["price"] == "unknown, spot in eu-north-1"
    assert lines(RunConfig())["price"] == "unknown"


def test_a_machine_without_an_adapter_has_no_efa() -> None:
    assert lines(spot(instance_type="g5.xlarge"))["machine"].endswith("2.5 Gbit/s, no EFA")


def test_a_local_run_is_on_this_host() -> None:
    said = lines(RunConfig(), local_gpus=8)
    assert said["backend"] == "local, 2 processes on this host"
    assert said["machine"] == "this host"
    assert said["ranks"].startswith("8 (2 nodes")


def test_a_local_trial_of_a_cluster_preset_is_on_this_host() -> None:
    said = lines(spot(backend="local"))
    assert (said["machine"], said["price"]) == ("this host", "unknown")


def test_the_work_of_a_step_is_counted_in_tokens() -> None:
    assert lines(spot())["batch"] == "512 sequences of 256 = 131,072 tokens a step, 500 steps"


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({}, "no limit"),
        ({"max_hours": 2.5}, "2.5 h"),
        ({"max_cost_usd": 12000}, "12000 USD"),
        ({"max_hours": 2, "max_cost_usd": 10.5}, "2 h or 10.5 USD"),
    ],
)
def test_limits_are_listed(budget: dict[str, float], said: str) -> None:
    assert lines(resolve({}, {"budget": budget}))["budget"] == said


def test_a_users_own_model_is_named_with_its_builder() -> None:
    own = {"build": "my.models:make", "name": "mine", "vocab_size": 5000, "max_sequence_length": 512}
    assert lines(resolve({"model": own}, {}))["model"] == "mine, built by my.models:make"


def test_the_space_that_checkpoints_will_take_is_said_beforehand() -> None:
    config = resolve(read_run("model: gpt2-124m"), read_overrides("train.steps=1000 checkpoint.every_steps=300"))
    text = lines(config)["checkpoints"]
    # 124,439,808 parameters x 12 bytes, and the tied head again, 38,597,376 x 4 = 1.648 GB; steps 300, 600, 900, 1,000
    assert text == "every 300 steps, 4 in all, 1.65 GB each; at most 4 at a time: 6.59 GB"


def test_retention_bounds_the_space_of_checkpoints() -> None:
    overrides = read_overrides("train.steps=1000 checkpoint.every_steps=100 checkpoint.tiers=[s3://b/j]")
    config = resolve(read_run("model: gpt2-124m"), overrides)
    assert lines(config)["checkpoints"].endswith("at most 4 at a time: 6.59 GB on each of 2 tiers")
    config = resolve(read_run("model: gpt2-124m"), read_overrides("train.steps=10000 checkpoint.every_steps=100"))
    kept = {"checkpoint": {"retention": {"keep_last": 2, "keep_every_steps": 1000}}}
    assert "at most 13 at a time" in lines(resolve(config.model_dump(mode="json"), kept))["checkpoints"]
