"""The dry run says in words what would be launched."""

from typing import Any

import pytest

from convoy.config.loader import read_overrides, read_run, resolve
from convoy.config.run import RunConfig
from convoy.launch.dry_run import describe_run


def lines(config: RunConfig, local_gpus: int = 0) -> dict[str, str]:
    pairs = [line.partition(":") for line in describe_run(config, local_gpus).splitlines()]
    return {key: text.strip() for key, _, text in pairs}


def spot(**cluster: Any) -> RunConfig:
    base = {"backend": "kubernetes", "nodes": 4, "instance_type": "p4d.24xlarge", "market": "spot"}
    return resolve({"root": "s3://bucket/convoy", "train": {"global_batch": 512}}, {"cluster": base | cluster})


OWN_MODEL = {"build": "my.models:make", "name": "mine", "vocab_size": 5000, "max_sequence_length": 512}


@pytest.mark.parametrize(
    ("config", "key", "begins", "ends"),
    [
        (spot(), "backend", "Kubernetes, a JobSet of 4 pods", ""),
        (spot(), "ranks", "32 (4 nodes \N{MULTIPLICATION SIGN} 8)", ""),
        (
            spot(),
            "machine",
            "4 \N{MULTIPLICATION SIGN} p4d.24xlarge: 8 \N{MULTIPLICATION SIGN} A100 of 40 GiB",
            "400 Gbit/s, 4 EFA",
        ),
        (spot(instance_type="g5.xlarge"), "machine", "4 ", "2.5 Gbit/s, no EFA"),
        (
            spot(),
            "price",
            "39.60 USD/h in all; 9.90 (median; zones 6.53 to 13.99) a machine and hour, spot in us-east-1, 2026-07-09",
            ")",
        ),
        (
            spot(market="on_demand"),
            "price",
            "87.83 USD/h in all; 21.96 a machine and hour, on_demand in us-east-1, 2026-11-09",
            ")",
        ),
        (spot(region="eu-north-1"), "price", "unknown, spot in eu-north-1", ""),
        (spot(), "root", "s3://bucket/convoy", ""),
        (spot(), "batch", "512 sequences of 256 = 131,072 tokens a step, 500 steps", ""),
        (RunConfig(), "backend", "local, 2 processes on this host", ""),
        (RunConfig(), "ranks", "8 (2 nodes", ""),
        (RunConfig(), "machine", "this host", ""),
        (spot(backend="local"), "machine", "this host", ""),
        (spot(backend="local"), "price", "unknown", "unknown"),
        (resolve({"model": OWN_MODEL}, {}), "model", "mine, built by my.models:make", ""),
        (resolve(read_run("engine: deepspeed"), {}), "model", "tiny, 4 layers", "trained by DeepSpeed ZeRO-3"),
        (RunConfig(), "budget", "no limit", ""),
        (resolve({}, {"budget": {"max_hours": 2, "max_cost_usd": 10.5}}), "budget", "2 h or 10.5 USD", ""),
    ],
)
def test_each_thing_that_would_be_launched_has_a_line(config: RunConfig, key: str, begins: str, ends: str) -> None:
    said = lines(config, local_gpus=8)[key]
    assert said.startswith(begins)
    assert said.endswith(ends)


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
