"""Every file of configs/ is complete, can run where it says, and the ready-made models give their size."""

from pathlib import Path

import pytest
import yaml

from convoy.catalog.prices import SHIPPED
from convoy.config.loader import configs_folder, read_overrides, read_run, resolve
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.launch.checks.compatibility import world
from convoy.launch.decorators import step_decorators
from convoy.launch.pricing import instance_price, machine_count
from convoy.model.counts import parameter_count
from tests.launch.checks.test_compatibility import refuse

MODELS = sorted(path.stem for path in (configs_folder() / "models").glob("*.yaml"))
TRAINS = sorted((configs_folder() / "train").glob("*.yaml"))
LOCAL = {"default", "cpu-smoke"}
CLUSTER = [path for path in TRAINS if path.stem not in LOCAL]


def model(name: str) -> TransformerConfig:
    config = resolve(read_run(f"{{model: {name}, data: {{tokenizer: {{kind: bytes}}}}}}"), {}).model
    assert isinstance(config, TransformerConfig)
    return config


def filled_in(path: Path) -> RunConfig:
    """The preset of a user who has put in the name of a bucket."""
    return resolve(read_run(path.read_text().replace("YOUR-BUCKET", "my-bucket")), {})


@pytest.mark.parametrize("name", MODELS)
def test_the_header_of_a_model_gives_its_size(name: str) -> None:
    text = (configs_folder() / "models" / f"{name}.yaml").read_text()
    assert f"# Parameters: {parameter_count(model(name)):,}" in text


@pytest.mark.parametrize("name", MODELS)
def test_a_model_takes_its_name_from_its_file(name: str) -> None:
    assert model(name).name == name
    assert "name" not in yaml.safe_load((configs_folder() / "models" / f"{name}.yaml").read_text())


def test_tiny_is_the_default_model() -> None:
    assert model("tiny") == TransformerConfig()


def test_tiny_writes_every_key_out() -> None:
    written = yaml.safe_load((configs_folder() / "models" / "tiny.yaml").read_text())
    assert set(written) == set(TransformerConfig.model_fields) - {"name"}


def test_every_training_preset_of_the_issue_is_there() -> None:
    sizes = ("gpt-7b", "llama-13b", "custom-30b", "gpt-175b")
    assert {path.stem for path in CLUSTER} == {f"{size}-{kind}" for size in sizes for kind in ("p4d", "p5")}


def test_the_default_file_is_the_default_job() -> None:
    assert resolve(read_run((configs_folder() / "train" / "default.yaml").read_text()), {}) == RunConfig()


def test_the_default_file_writes_every_key_out() -> None:
    written = yaml.safe_load((configs_folder() / "train" / "default.yaml").read_text())
    for key, value in RunConfig().model_dump().items():
        if isinstance(value, dict) and key != "model":
            assert set(written[key]) == set(value), key
    assert set(written) == set(RunConfig.model_fields)


@pytest.mark.parametrize("name", sorted(LOCAL))
def test_a_local_preset_runs_as_it_is(name: str) -> None:
    config = resolve(read_run((configs_folder() / "train" / f"{name}.yaml").read_text()), {})
    assert refuse(config, datastore="local") is None


@pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.stem)
def test_a_cluster_preset_is_refused_until_the_bucket_is_filled_in(path: Path) -> None:
    assert "YOUR-BUCKET is no bucket" in str(refuse(resolve(read_run(path.read_text()), {}), datastore="s3"))
    assert refuse(filled_in(path), datastore="s3") is None


@pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.stem)
def test_a_cluster_preset_runs_on_the_machine_of_its_name(path: Path) -> None:
    config = filled_in(path)
    ranks, batch = world(config).size, config.train.global_batch
    assert batch % (ranks * config.train.micro_batch) == 0, "every rank has the same full passes"
    assert 2e6 <= batch * config.data.sequence_length <= 4.2e6
    compute = step_decorators(config).gang[0].arguments
    adapters = compute.get("efa") or int(compute["extended_resources"]["vpc.amazonaws.com/efa"])
    assert (compute["gpu"], adapters) == (8, 4 if "p4d" in path.stem else 32)
    assert f"{config.model.name}-{config.cluster.instance_type}".startswith(path.stem)
    assert f"configs/train/{path.name}" in path.read_text()


@pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.stem)
def test_a_budget_in_dollars_lasts_for_the_days_it_promises(path: Path) -> None:
    config = filled_in(path)
    budget, price = config.budget, instance_price(config, SHIPPED)
    assert (budget.max_hours is None) != (budget.max_cost_usd is None)
    if budget.max_cost_usd is not None:
        assert price is not None
        assert (
            200
            < budget.max_cost_usd / (price.usd_per_hour * machine_count(config))
            < config.cluster.time_limit_hours + 200
        )


@pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.stem)
def test_one_key_overrides_turn_a_cluster_preset_into_a_local_trial(path: Path) -> None:
    over = """
        cluster.backend=local model=tiny data.tokenizer.vocab_size=4096 'data.corpus={kind: stdlib}'
        data.sequence_length=256 parallel.strategy=fsdp parallel.shard_size=null
        budget.max_cost_usd=null root=null
    """
    config = resolve(read_run(path.read_text()), read_overrides(over))
    assert refuse(config, datastore="local") is None
