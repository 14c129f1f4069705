"""Every file of configs/ is complete, can run where it says, and the ready-made models have their published sizes."""

from pathlib import Path

import pytest
import yaml

from convoy.catalog.prices import SHIPPED
from convoy.config.loader import configs_folder, read_overrides, read_run, resolve
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.launch.checks.compatibility import world
from convoy.launch.decorators import step_decorators
from convoy.launch.pricing import instance_price, machines
from tests.launch.checks.test_compatibility import refuse

MODELS = sorted(path.stem for path in (configs_folder() / "models").glob("*.yaml"))
TRAINS = sorted((configs_folder() / "train").glob("*.yaml"))
LOCAL = {"default", "cpu-smoke"}
CLUSTER = [path for path in TRAINS if path.stem not in LOCAL]

PUBLISHED = {
    "gpt2-124m": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt-7b": 6.7e9,
    "llama-1b": 1_100_048_384,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "custom-30b": 30e9,
    "llama-70b": 68_976_648_192,
    "gpt-175b": 174.6e9,
}


def model(name: str) -> TransformerConfig:
    config = resolve(read_run(f"{{model: {name}, data: {{tokenizer: {{kind: bytes}}}}}}"), {}).model
    assert isinstance(config, TransformerConfig)
    return config


def parameters(shape: TransformerConfig) -> int:
    """Weights by counting matrices: embeddings, attention, MLP, norms and biases."""
    d, ff, kv = shape.d_model, shape.ff_width, shape.kv_heads * shape.head_width
    norm = d * (2 if shape.norm == "layernorm" and shape.bias else 1)
    attention = 2 * d * d + 2 * d * kv + shape.bias * (2 * d + 2 * kv)
    mlp = 2 * d * ff + shape.bias * (ff + d) if shape.mlp == "gelu" else 3 * d * ff
    embeddings = shape.vocab_size * d * (1 if shape.tied_embeddings else 2)
    positions = shape.max_sequence_length * d if shape.positions == "learned" else 0
    return embeddings + positions + shape.n_layers * (attention + mlp + 2 * norm) + norm


def filled_in(path: Path) -> RunConfig:
    """The preset of a user who has put in the name of a bucket."""
    return resolve(read_run(path.read_text().replace("YOUR-BUCKET", "my-bucket")), {})


def test_every_model_of_the_issue_is_there() -> None:
    assert set(MODELS) == {"tiny", *PUBLISHED}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_model_has_its_published_size(name: str) -> None:
    assert parameters(model(name)) == pytest.approx(PUBLISHED[name], rel=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_the_header_of_a_model_gives_its_size(name: str) -> None:
    text = (configs_folder() / "models" / f"{name}.yaml").read_text()
    assert f"# Parameters: {parameters(model(name)):,}" in text


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
    assert f"{config.model.name}-{config.cluster.instance_type}".startswith(path.stem)
    assert f"configs/train/{path.name}" in path.read_text()


@pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.stem)
def test_every_rank_has_the_same_full_passes(path: Path) -> None:
    config = filled_in(path)
    ranks = world(config).size
    assert config.train.global_batch % (ranks * config.train.micro_batch) == 0
    assert 2e6 <= config.train.global_batch * config.data.sequence_length <= 4.2e6


@pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.stem)
def test_a_budget_in_dollars_lasts_for_the_days_it_promises(path: Path) -> None:
    config = filled_in(path)
    budget, price = config.budget, instance_price(config, SHIPPED)
    assert (budget.max_hours is None) != (budget.max_cost_usd is None)
    if budget.max_cost_usd is not None:
        assert price is not None
        assert (
            200 < budget.max_cost_usd / (price.usd_per_hour * machines(config)) < config.cluster.time_limit_hours + 200
        )


@pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.stem)
def test_a_cluster_preset_asks_for_gpus_and_adapters(path: Path) -> None:
    compute = step_decorators(filled_in(path)).gang[0]
    adapters = compute.arguments.get("efa") or int(compute.arguments["extended_resources"]["vpc.amazonaws.com/efa"])
    assert compute.arguments["gpu"] == 8
    assert adapters == (4 if "p4d" in path.stem else 32)


@pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.stem)
def test_one_key_overrides_turn_a_cluster_preset_into_a_local_trial(path: Path) -> None:
    over = """
        cluster.backend=local model=tiny data.tokenizer.vocab_size=4096 'data.corpus={kind: stdlib}'
        data.sequence_length=256 parallel.strategy=fsdp parallel.shard_size=null
        budget.max_cost_usd=null root=null
    """
    config = resolve(read_run(path.read_text()), read_overrides(over))
    assert refuse(config, datastore="local") is None
