"""From a configuration to groups: which cases there are, and what each changes."""

from pathlib import Path

import pytest

from convoy.bench.fit import check_memory, state_bytes
from convoy.bench.groups import Ranks, VariantSpec
from convoy.bench.model_parallel import shape_of
from convoy.bench.model_parallel import variants_of as model_parallel_variants
from convoy.bench.plan import ENDLESS, plan, run_of
from convoy.bench.scaling import further_values, sizes, variants_of
from convoy.bench.throughput import techniques
from convoy.config.bench import BenchConfig, read_bench, resolve_bench, with_presets
from convoy.config.errors import ConfigError
from convoy.config.load import configs_folder
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.launch.support import World, check_ranks
from convoy.model.counts import parameter_count
from convoy.results.case import Block


def planned(config: BenchConfig, ranks: int) -> list[str]:
    runs = {model: run_of(config, model) for model in config.models}
    return [group.name for group in plan(config, runs, Ranks(ranks, 1))]


def test_the_default_benchmark_is_what_its_file_says() -> None:
    text = (configs_folder() / "bench" / "default.yaml").read_text()
    assert planned(resolve_bench(read_bench(text), {}), 2) == [
        "throughput-tiny", "scaling-tiny", "strategies-tiny", "strategies-tiny-model-parallel",
    ]  # fmt: skip


def test_a_gang_of_one_rank_does_not_scale() -> None:
    assert planned(BenchConfig(), 1) == ["throughput-tiny"]


def test_each_model_has_groups_of_its_own() -> None:
    config = BenchConfig(suites=("throughput",), models=("tiny", "gpt2-124m"), run={"train": {"global_batch": 4}})
    runs = {model: run_of(config, model) for model in config.models}
    assert planned(config, 1) == ["throughput-tiny", "throughput-gpt2-124m"]
    assert [run.model.name for run in runs.values()] == ["tiny", "gpt2-124m"]
    assert {(run.train.global_batch, run.train.steps) for run in runs.values()} == {(4, ENDLESS)}


def test_strategies_are_compared_with_ddp() -> None:
    config = BenchConfig(suites=("strategies",))
    group, _ = plan(config, {"tiny": run_of(config, "tiny")}, Ranks(4, 1))
    assert group.baseline == "ddp"
    told = {spec.name: spec.config(group.run).parallel for spec in group.variants}
    assert {name: found.sharing(4, 1) for name, found in told.items()} == {
        "ddp": 1, "fsdp": 4, "fsdp, gathered once": 4, "fsdp by linear": 4, "hsdp, 2 ranks": 2,
    }  # fmt: skip
    assert [name for name, found in told.items() if not found.reshard_after_forward] == ["fsdp, gathered once"]
    assert [name for name, found in told.items() if found.wrap == "linear"] == ["fsdp by linear"]


@pytest.mark.parametrize(
    ("ranks", "names"),
    [
        (2, ["fsdp 2", "tensor 2", "pipeline 2"]),
        (3, []),
        (4, ["fsdp 4", "fsdp 2 × tensor 2", "fsdp 2 × pipeline 2"]),
        (8, ["fsdp 8", "fsdp 4 × tensor 2", "fsdp 4 × pipeline 2", "fsdp 2 × tensor 2 × pipeline 2"]),
    ],
)
def test_what_cuts_the_model_is_compared_with_fsdp(ranks: int, names: list[str]) -> None:
    config = BenchConfig(suites=("strategies",), run={"train": {"global_batch": 8, "micro_batch": 4, "compile": True}})
    groups = plan(config, {"tiny": run_of(config, "tiny")}, Ranks(ranks, 1))[1:]
    assert [spec.name for group in groups for spec in group.variants] == names
    for group in groups:
        assert group.baseline == names[0]
        for spec in group.variants:
            check_ranks(spec.config(group.run), World(ranks, 1))
            assert not spec.config(group.run).train.compile


def test_a_model_is_changed_no_more_than_cutting_it_needs() -> None:
    assert shape_of(TransformerConfig()) == {"tied_embeddings": False, "n_heads": 4, "n_kv_heads": None}
    assert shape_of(TransformerConfig(n_heads=4, n_kv_heads=2)) == {"tied_embeddings": False}
    assert shape_of(TransformerConfig(n_layers=1)) is None
    assert shape_of(TransformerConfig(d_ff=71)) is None
    assert shape_of(TransformerConfig(d_model=42)) is None


def test_neighbours_on_two_nodes_share_no_products() -> None:
    run = run_of(BenchConfig(), "tiny")
    assert [spec.name for spec in model_parallel_variants(run, 2, in_node=False)] == ["fsdp 2", "pipeline 2"]


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        ({"suites": ["throughputs"]}, "suites"),
        ({"rounds": 3}, "rounds"),
        ({"measure": {"rounds": 3}}, "measure.rounds = 3"),
        ({"models": []}, "models"),
    ],
)
def test_a_bad_key_is_one_line(tree: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve_bench(tree, {})
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("run", "told"), [({"trains": {}}, "trains"), ({"train": {"seed": "x"}}, "train.seed = x")])
def test_a_bad_key_of_the_run_is_one_line(run: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        run_of(BenchConfig(run=run), "tiny")


def test_a_model_that_is_no_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean tiny"):
        run_of(BenchConfig(models=("tinny",)), "tinny")


def test_a_technique_differs_from_ours_in_one_key() -> None:
    run = RunConfig()
    plain = run.model_dump(mode="json")
    specs = list(techniques(run, 1))
    assert len({spec.name for spec in specs}) == len(specs) >= 5
    for spec in specs:
        other = spec.config(run).model_dump(mode="json")
        sections = [name for name, keys in plain.items() if isinstance(keys, dict)]
        changed = [f"{name}.{key}" for name in sections for key in plain[name] if plain[name][key] != other[name][key]]
        assert len(changed) == 1, (spec.name, changed)


def test_weak_scaling_grows_with_the_ranks_and_strong_does_not() -> None:
    found = {spec.name: spec for spec in variants_of(10, Ranks(4, 1))}
    told = {name: (spec.ranks, spec.changes["train"]["global_batch"], spec.values) for name, spec in found.items()}
    assert told == {
        "1 rank": (1, 2, {}),
        "4 jobs of 1 rank": (1, 2, {"independent": 1.0}),
        "2 ranks, weak": (2, 4, {"weak": 1.0}),
        "2 ranks, strong": (2, 2, {"weak": 0.0}),
        "4 ranks, weak": (4, 8, {"weak": 1.0}),  # two sequences cannot be shared by four ranks
    }
    assert [name for name, spec in found.items() if spec.at_once] == ["4 jobs of 1 rank"]


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        (Ranks(6, 1), [2, 6]),
        (Ranks(3, 1), [3]),
        (Ranks(8, 1), [2, 4, 8]),
        (Ranks(12, 3), [12]),  # 2 and 4 ranks are neither parts of a node of three nor whole nodes
        (Ranks(24, 6), [2, 24]),
        (Ranks(16, 8), [2, 4, 8, 16]),
    ],
)
def test_sizes_divide_the_gang_and_fill_nodes(ranks: Ranks, found: list[int]) -> None:
    assert sizes(ranks) == found


def test_fewer_ranks_than_a_shard_group_shard_over_all_of_them() -> None:
    told = {spec.name: spec.changes.get("parallel") for spec in variants_of(8, Ranks(4, 1), shard_size=2)}
    assert told["1 rank"] == {"shard_size": 1}
    assert told["4 jobs of 1 rank"] == {"shard_size": 1}
    assert told["2 ranks, weak"] is None
    assert told["4 ranks, weak"] is None


def test_half_a_micro_batch_is_half_of_what_a_rank_passes_at_a_time() -> None:
    run = RunConfig.model_validate({"train": {"global_batch": 8, "micro_batch": 8}})
    for ranks, name in ((1, "micro batch 4"), (2, "micro batch 2"), (4, "micro batch 1")):
        assert name in [spec.name for spec in techniques(run, ranks)]
    assert not [spec for spec in techniques(run, 8) if spec.name.startswith("micro batch")]


def test_keys_of_the_model_are_laid_on_its_preset() -> None:
    run = run_of(BenchConfig(run={"model": {"n_layers": 2}}), "tiny")
    assert (run.model.name, run.model.n_layers) == ("tiny", 2)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"run\.model = gpt2-124m: must be keys"):
        run_of(BenchConfig(run={"model": "gpt2-124m"}), "tiny")


def test_the_presets_come_with_the_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = resolve_bench(read_bench("models: [gpt2-124m]"), with_presets({"models": ["tiny"]}))
    monkeypatch.setenv("CONVOY_CONFIGS", str(tmp_path))  # as on a machine of a cluster
    assert config.models == ("tiny",)
    assert run_of(config, "tiny").model.name == "tiny"


def test_a_corpus_of_another_kind_replaces_the_first_one() -> None:
    base = {"run": {"data": {"corpus": {"kind": "files", "path": "/texts"}}}}
    config = resolve_bench(base, {"run": {"data": {"corpus": {"kind": "synthetic"}}}})
    assert run_of(config, "tiny").data.corpus.kind == "synthetic"


def test_communication_is_what_training_together_costs_more_than_training_beside_each_other() -> None:
    def blocks(seconds: float, sent: float | None) -> list[Block]:
        return [Block(number=i, steps=1, seconds=seconds, cpu_seconds=1, network_bytes=sent) for i in range(6)]

    measured = {
        "1 rank": blocks(0.5, 0), "2 jobs of 1 rank": blocks(0.6, 10), "2 ranks, weak": blocks(0.75, 4000),
        "2 ranks, strong": blocks(0.4, None),
    }  # fmt: skip
    specs = {spec.name: spec for spec in variants_of(4, Ranks(2, 1))}
    found = {name: further_values(measured, spec, 2) for name, spec in specs.items()}
    assert found["2 ranks, weak"] == {
        "weak": 1.0,
        "network_bytes": 2000.0,
        "communication_seconds": pytest.approx(0.15),
    }
    assert found["2 jobs of 1 rank"] == {"independent": 1.0, "network_bytes": 5.0}
    assert found["2 ranks, strong"] == {"weak": 0.0}


def test_the_state_of_a_case_is_counted_by_how_often_it_is_there() -> None:
    run = RunConfig()
    once = 16 * parameter_count(run.model)  # type: ignore[arg-type]
    assert state_bytes(VariantSpec(name="ours"), run, 4) == once
    assert state_bytes(VariantSpec(name="baseline", kind="baseline"), run, 4) == 4 * once
    assert state_bytes(VariantSpec(name="jobs", ranks=1, at_once=True), run, 4) == 4 * once
    assert state_bytes(VariantSpec(name="alone", ranks=1), run, 4) == once


def test_what_does_not_fit_is_told_with_what_it_needs() -> None:
    config = BenchConfig(suites=("throughput",), models=("gpt-7b",))
    (group,) = plan(config, {"gpt-7b": run_of(config, "gpt-7b")}, Ranks(4, 1))
    with pytest.raises(ConfigError) as refused:
        check_memory(group, 4, 24 * 2**30)
    assert str(refused.value).startswith("model = gpt-7b: a case of throughput-gpt-7b needs at least ")
    assert "24.0 GiB" in str(refused.value)
    check_memory(group, 4, None)
    check_memory(group, 4, 10**15)


def test_cases_that_only_together_do_not_fit_are_told_so() -> None:
    config = BenchConfig(suites=("throughput",))
    (group,) = plan(config, {"tiny": run_of(config, "tiny")}, Ranks(1, 1))
    one = state_bytes(group.variants[0], group.run, 1)
    assert one is not None
    with pytest.raises(ConfigError, match=rf"the {len(group.variants)} cases of throughput-tiny need"):
        check_memory(group, 1, 2 * one)
