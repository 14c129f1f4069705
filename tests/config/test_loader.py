"""Files, presets and overrides: what is laid on what, and what makes another training."""

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.config.data import BpeTokenizer, Corpus, FilesCorpus, ShardsCorpus
from convoy.config.errors import ConfigError
from convoy.config.loader import configs_folder, default_root, read_overrides, read_run, resolve
from convoy.config.model import CustomModelConfig, TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import MODEL_UNTIMED, TRAIN, RunConfig, config_hash, training_hash
from convoy.config.train import TrainConfig
from tests.campaign import examples

pytestmark = pytest.mark.campaign

PRESET = "n_layers: 12\nd_model: 768\nn_heads: 12\nvocab_size: 50257\nmax_sequence_length: 1024\n"


@pytest.fixture(autouse=True)
def presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of presets of the tests' own."""
    folder = tmp_path / "configs" / "models"
    folder.mkdir(parents=True)
    (folder / "big.yaml").write_text(PRESET)
    (folder / "wide.yaml").write_text("d_model: 1024\nn_heads: 16\n")
    monkeypatch.setenv("CONVOY_CONFIGS", str(folder.parent))
    return folder


def resolved(text: str = "", overrides: str = "") -> RunConfig:
    return resolve(read_run(text), read_overrides(overrides))


def model_of(config: RunConfig) -> TransformerConfig:
    assert isinstance(config.model, TransformerConfig)
    return config.model


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "{}", "null"])
def test_an_empty_file_is_the_default_job(text: str) -> None:
    assert resolved(text) == RunConfig()


def test_an_override_wins_over_the_file_and_leaves_its_neighbours() -> None:
    config = resolved("train: {steps: 50, seed: 3}", "train.steps=100 train.steps=200")  # the last one counts
    assert (config.train.steps, config.train.seed) == (200, 3)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a=5", 5),
        ("a=1.5", 1.5),
        ("a=1e-3", 1e-3),
        ("a=-2E+3", -2000.0),
        ("a=3e-4", 3e-4),
        ("a=true", True),
        ("a=null", None),
        ("a=", None),
        ("a=text", "text"),
        ("a=2024-01-01", "2024-01-01"),
        ("a=[1,2]", [1, 2]),
        ("a='[1, x y]'", [1, "x y"]),
        ("a='{b: 1}'", {"b": 1}),
        ("a='two words'", "two words"),
        ("a=\"'5'\"", "5"),
        ("a=b=c", "b=c"),
        ("a=s3://bucket/prefix", "s3://bucket/prefix"),
    ],
)
def test_a_value_is_yaml(word: str, value: object) -> None:
    read = read_overrides(word)["a"]
    assert (read, type(read)) == (value, type(value))


PLAIN_TEXT = st.text(st.characters(max_codepoint=0xD7FF))  # YAML does not know JSON's surrogate pairs


@examples(25)
@given(st.recursive(st.none() | st.booleans() | st.integers() | PLAIN_TEXT, st.lists, max_leaves=5))
def test_any_json_value_can_be_an_override(value: object) -> None:
    assert read_overrides(f"a.b={shlex.quote(json.dumps(value))}") == {"a": {"b": value}}


SMALL = "model: {d_model: 64, n_heads: 4, dropout: 0.5}"


@pytest.mark.parametrize(
    ("text", "overrides", "n_layers"),
    [
        ("model: big", "", 12),
        ("model: {preset: big}", "", 12),
        (SMALL, "model=big", 12),
        (SMALL, "model.preset=big", 12),
        ("", "model=big model.n_layers=2", 2),
        ("", "model.n_layers=2 model=big", 2),
        ("", "model.preset=big model.n_layers=2", 2),
        ("model: {preset: big, n_layers: 3}", "model.n_layers=4", 4),
    ],
)
def test_a_preset_replaces_the_whole_model_and_lies_below_its_fields(text: str, overrides: str, n_layers: int) -> None:
    model = model_of(resolved(text, overrides))
    assert model == TransformerConfig(name="big", n_layers=n_layers, d_model=768, n_heads=12, vocab_size=50257,
                                      max_sequence_length=1024)  # fmt: skip


def test_of_two_presets_nothing_of_the_first_shines_through() -> None:
    model = model_of(resolved("model: big", "model=wide"))
    assert model == TransformerConfig(name="wide", d_model=1024, n_heads=16)


def test_an_unknown_preset_names_its_nearest_and_where_presets_are(presets: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_overrides("model=bigg")
    assert str(caught.value) == f"model = bigg: no such preset in {presets}; did you mean big?"
    with pytest.raises(ConfigError, match=r"model = zzz: no such preset in .*; known: big, wide"):
        read_run("model: zzz")


def test_a_broken_preset_names_its_file(presets: Path) -> None:
    (presets / "broken.yaml").write_text("n_layers: [")
    with pytest.raises(ConfigError, match=r"models/broken.yaml is not YAML: line 1"):
        read_run("model: broken")


def test_a_preset_may_be_a_custom_model(presets: Path) -> None:
    (presets / "mine.yaml").write_text("build: pkg.mod:fn\nvocab_size: 5000\nmax_sequence_length: 256\n")
    assert isinstance(resolved(overrides="model=mine").model, CustomModelConfig)


CUSTOM = "model.build=pkg.mod:fn model.vocab_size=5000 model.max_sequence_length=256"


def test_a_custom_model_replaces_the_transformer_in_any_order_of_its_keys() -> None:
    words = CUSTOM.split()
    for order in (words, words[::-1]):
        config = resolved("model: big", " ".join(order))
        assert config.model == CustomModelConfig(build="pkg.mod:fn", vocab_size=5000, max_sequence_length=256)


def test_a_preset_replaces_a_custom_model() -> None:
    base = read_overrides(CUSTOM)
    assert model_of(resolve(base, read_overrides("model=wide"))).name == "wide"


def test_a_field_of_a_custom_model_can_be_overridden() -> None:
    config = resolve(read_overrides(CUSTOM), read_overrides("model.args.width=3 model.name=mine"))
    assert isinstance(config.model, CustomModelConfig)
    assert (config.model.args, config.model.name) == ({"width": 3}, "mine")


FILES = "data: {corpus: {kind: files, path: /texts, format: jsonl}}"
SHARDS = "data.corpus.kind=shards data.corpus.path=/bins data.corpus.vocab_size=300"


@pytest.mark.parametrize(
    ("text", "overrides", "corpus"),
    [
        (FILES, SHARDS, ShardsCorpus(kind="shards", path="/bins", vocab_size=300)),
        (FILES, "data.corpus.path=/other", FilesCorpus(kind="files", path="/other", format="jsonl")),
        (FILES, "data.corpus.kind=files data.corpus.path=/b", FilesCorpus(kind="files", path="/b", format="jsonl")),
        ("", "data.corpus.path=/texts data.corpus.kind=files", FilesCorpus(kind="files", path="/texts")),
    ],
)
def test_another_kind_replaces_the_mapping_and_the_same_is_merged(text: str, overrides: str, corpus: Corpus) -> None:
    assert resolved(text, overrides).data.corpus == corpus


def test_a_field_of_the_default_kind_needs_no_kind() -> None:
    for config in (
        resolved(overrides="data.tokenizer.vocab_size=512"),
        resolved("data: {tokenizer: {vocab_size: 512}}"),
    ):
        assert config.data.tokenizer == BpeTokenizer(vocab_size=512)


def test_a_kind_that_is_only_a_value_replaces_nothing_else() -> None:
    config = resolved("schedule: {kind: cosine, warmup_steps: 77}", "schedule.kind=linear")
    assert (config.schedule.kind, config.schedule.warmup_steps) == ("linear", 77)


def test_a_resolved_configuration_survives_json() -> None:
    config = resolved("model: big", "data.corpus.kind=files data.corpus.path=/x model.vocab_size=60000")
    assert resolve(json.loads(json.dumps(config.model_dump(mode="json"))), {}) == config


def test_the_hash_is_of_what_is_meant_not_of_how_it_is_written() -> None:
    one = resolved("train: {steps: 7, seed: 1}\noptimizer: {lr: 0.01}")
    other = resolved("optimizer:\n  lr: 1e-2\ntrain:\n  seed: 1", "train.steps=7")
    assert config_hash(one) == config_hash(other)
    assert len(config_hash(one)) == 16


def test_the_root_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVOY_ROOT", "s3://bucket/jobs")
    assert default_root() == "s3://bucket/jobs"


def test_without_it_the_root_is_the_nearest_folder_at_or_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONVOY_ROOT", raising=False)
    below = tmp_path / "project" / "flows" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert default_root() == str(below / ".convoy")
    (tmp_path / ".convoy").mkdir()
    assert default_root() == str(tmp_path / ".convoy")
    (tmp_path / "project" / ".convoy").mkdir()
    assert default_root() == str(tmp_path / "project" / ".convoy")
    (below / ".convoy").write_text("a file is no root")
    assert default_root() == str(tmp_path / "project" / ".convoy")


def test_presets_come_from_the_repository_unless_the_environment_names_a_folder(
    monkeypatch: pytest.MonkeyPatch, presets: Path
) -> None:
    assert configs_folder() == presets.parent
    monkeypatch.delenv("CONVOY_CONFIGS")
    assert configs_folder() == Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize("key", ["train.micro_batch", "train.clip_norm", "optimizer.lr", "cluster.nproc_per_node"])
def test_true_is_not_taken_for_the_number_one(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key} = true: must be a number$"):
        resolve({}, read_overrides(f"{key}=true"))


def hashed(words: str = "") -> str:
    return training_hash(resolve({}, read_overrides(words)))


@pytest.mark.parametrize(
    "words",
    [
        "train.micro_batch=2", "train.param_dtype=fp32", "train.prefetch_steps=0", "model.n_layers=5",
        "data.sequence_length=128", "data.packing=false", "optimizer.fused=false", "parallel.strategy=ddp",
        "checkpoint.every_steps=9", "checkpoint.write_mb_per_second=null",
    ],
)  # fmt: skip
def test_what_steps_and_saves_follow_from_makes_another(words: str) -> None:
    assert hashed(words) != hashed()


@pytest.mark.parametrize(
    "words",
    [
        "train.steps=9", "train.seed=3", "train.log_every_steps=5", "train.matmul_peak_seconds=0",
        "train.prefetch_steps=4", "train.node_check_seconds=0", "train.clip_norm=null", "optimizer.lr=1e-4",
        "optimizer.betas=[0.9,0.99]", "schedule.kind=linear", "model.name=other", "model.init_std=0.01",
        "data.cache=/elsewhere", "data.validation_fraction=0.1", "checkpoint.verify=false",
        "checkpoint.retention.keep_last=9", "checkpoint.tiers=[/b]", "cluster.nodes=4", "root=/elsewhere",
        "budget.max_hours=3", "evaluation.every_steps=9",
    ],
)  # fmt: skip
def test_what_they_do_not_follow_from_makes_none(words: str) -> None:
    assert hashed(words) == hashed()


def test_a_key_of_a_later_version_makes_no_other_of_what_does_not_set_it() -> None:
    class Later(ParallelConfig):
        new: int = 1

    config = RunConfig()
    later = config.model_copy(update={"parallel": Later()})
    assert training_hash(later) == training_hash(config)
    assert hashed("train.micro_batch=8") == hashed()  # the default, spelled out


def test_the_names_are_those_of_keys() -> None:
    assert set(TRAIN) < set(TrainConfig.model_fields)
    assert set(MODEL_UNTIMED) < set(TransformerConfig.model_fields)
