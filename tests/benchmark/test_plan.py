"""From a configuration to groups: which cases there are, and what each changes."""

from typing import Any

import pytest

from convoy.benchmark.cases import communication_values
from convoy.benchmark.groups import Ranks, VariantSpec
from convoy.benchmark.memory_estimate import estimate_memory
from convoy.benchmark.plan import ENDLESS, run_of
from convoy.benchmark.results.case import Block
from convoy.benchmark.results.figures import sync_share
from convoy.benchmark.suites.memory import variants_of as savers
from convoy.benchmark.suites.scaling import rank_counts, variants_of
from convoy.benchmark.suites.strategies import cuttable_shape, model_parallel_variants
from convoy.benchmark.suites.throughput import techniques
from convoy.config.benchmark import BenchConfig, resolve_bench
from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig, World, check_ranks
from tests.benchmark.benches import groups_of, ready
from tests.benchmark.cases import a_case, replaced


def planned(config: BenchConfig, ranks: int) -> list[str]:
    return [group.name for group in groups_of(config, Ranks(ranks, 1))]


def test_the_default_benchmark_is_what_its_file_says() -> None:
    cases = {group.name: [spec.name for spec in group.case_specs] for group in groups_of(ready("default"), Ranks(2, 1))}
    assert list(cases) == [
        "throughput-tiny", "scaling-tiny", "strategies-tiny", "sync-tiny", "checkpoint-tiny", "recovery",
    ]  # fmt: skip
    assert cases["throughput-tiny"] == ["baseline", "ours", "bf16", "recomputed"]
    assert cases["strategies-tiny"] == ["ddp", "fsdp"]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("tensor 2",), {"strategies-tiny-model-parallel": ["fsdp 2", "tensor 2"]}),
        (
            ("fsdp", "pipeline 2"),
            {"strategies-tiny": ["ddp", "fsdp"], "strategies-tiny-model-parallel": ["fsdp 2", "pipeline 2"]},
        ),
    ],
)
def test_chosen_cases_come_with_what_they_are_compared_with(
    names: tuple[str, ...], chosen: dict[str, list[str]]
) -> None:
    config = BenchConfig(suites=("strategies",), cases={"strategies": names})
    assert {group.name: [spec.name for spec in group.case_specs] for group in groups_of(config, Ranks(2, 1))} == chosen


@pytest.mark.parametrize(
    ("cases", "error"),
    [
        ({"scalling": ("1 rank",)}, "cases = scalling: must be one of .*; did you mean scaling?"),
        ({"strategies": ("fsd",)}, r'^cases\.strategies = \["fsd"\]: must be among ddp; fsdp; .*; pipeline 2$'),
    ],
)
def test_cases_that_do_not_exist_are_refused(cases: dict[str, tuple[str, ...]], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        groups_of(BenchConfig(suites=("strategies",), cases=cases), Ranks(2, 1))


def test_drills_come_last() -> None:
    assert planned(BenchConfig(suites=("recovery", "throughput")), 2) == ["throughput-tiny", "recovery"]


def test_a_gang_of_one_rank_does_not_scale() -> None:
    assert planned(BenchConfig(), 1) == ["throughput-tiny", "checkpoint-tiny", "recovery"]


def test_each_model_has_groups_of_its_own() -> None:
    config = BenchConfig(suites=("throughput",), models=("tiny", "gpt2-124m"), run={"train": {"global_batch": 4}})
    runs = {model: run_of(config, model) for model in config.models}
    assert planned(config, 1) == ["throughput-tiny", "throughput-gpt2-124m"]
    assert [run.model.name for run in runs.values()] == ["tiny", "gpt2-124m"]
    assert {(run.train.global_batch, run.train.steps) for run in runs.values()} == {(4, ENDLESS)}


def test_strategies_are_compared_with_ddp() -> None:
    group, _ = groups_of(BenchConfig(suites=("strategies",)), Ranks(4, 1))
    assert group.baseline == "ddp"
    told = {spec.name: spec.config(group.run).parallel for spec in group.variants}
    assert {name: found.ranks_per_state_copy(4, 1) for name, found in told.items()} == {
        "ddp": 1, "fsdp": 4, "fsdp, gathered once": 4, "fsdp by linear": 4, "hsdp, 2 ranks": 2,
    }  # fmt: skip
    assert [name for name, found in told.items() if not found.reshard_after_forward] == ["fsdp, gathered once"]
    assert [name for name, found in told.items() if found.wrap == "linear"] == ["fsdp by linear"]


def test_the_ready_comparison_with_other_libraries_has_them_all() -> None:
    group, _ = groups_of(ready("peers"), Ranks(2, 1))
    assert {spec.name: group.baseline_of(spec) for spec in group.variants} == {
        "ddp": None, "fsdp": "ddp", "fsdp, gathered once": "ddp", "fsdp by linear": "ddp", "torch DDP": "ddp",
        "accelerate FSDP2": "fsdp", "DeepSpeed ZeRO-3": "fsdp",
        "DeepSpeed ZeRO-1": "fsdp, gathered once", "DeepSpeed ZeRO-2": "fsdp, gathered once",
        "accelerate FSDP2 as engine": "accelerate FSDP2",
        **{f"DeepSpeed ZeRO-{stage} as engine": f"DeepSpeed ZeRO-{stage}" for stage in (1, 2, 3)},
    }  # fmt: skip
    for spec in group.variants:  # in our own words, what a library spreads is what it is compared with
        ours = next((each for each in group.variants if each.name == spec.baseline), spec)
        assert spec.config(group.run).parallel == ours.config(group.run).parallel


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
    groups = groups_of(config, Ranks(ranks, 1))[1:]
    assert [spec.name for group in groups for spec in group.variants] == names
    for group in groups:
        assert group.baseline == names[0]
        for spec in group.variants:
            check_ranks(spec.config(group.run), World(ranks, 1))
            assert not spec.config(group.run).train.compile


def test_what_a_run_cuts_or_offloads_is_not_done_where_it_cannot_be() -> None:
    whole = {"tensor": 1, "pipeline": 1, "cpu_offload": False}
    for parallel in ({"cpu_offload": True}, {"tensor": 2}):
        run = {"parallel": parallel, "model": {"n_heads": 4}, "train": {"compile": False}}
        config = BenchConfig(suites=("strategies",), peers=("torch", "accelerate", "deepspeed"), run=run)
        compared, cut = groups_of(config, Ranks(4, 1))
        for spec in compared.variants:
            if spec.kind != "ours":
                assert whole.items() <= spec.config(compared.run).parallel.model_dump().items(), spec.name
        assert {spec.config(cut.run).parallel.cpu_offload for spec in cut.variants} == {False}


def test_a_case_that_the_run_does_not_allow_is_told_in_one_line() -> None:
    run = RunConfig.model_validate({"parallel": {"tensor": 2}, "model": {"n_heads": 4}, "train": {"compile": False}})
    with pytest.raises(ConfigError) as refused:
        VariantSpec(name="offloaded", changes={"parallel": {"cpu_offload": True}}).config(run)
    assert str(refused.value) == "run.parallel.tensor = 2: not with cpu_offload (the case offloaded)"


def test_a_model_is_changed_no_more_than_cutting_it_needs() -> None:
    assert cuttable_shape(TransformerConfig()) == {"tied_embeddings": False, "n_heads": 4, "n_kv_heads": None}
    assert cuttable_shape(TransformerConfig(n_heads=4, n_kv_heads=2)) == {"tied_embeddings": False}
    assert cuttable_shape(TransformerConfig(n_layers=1)) is None
    assert cuttable_shape(TransformerConfig(d_ff=71)) is None
    assert cuttable_shape(TransformerConfig(d_model=42)) is None


def test_neighbours_on_two_nodes_share_no_products() -> None:
    run = run_of(BenchConfig(), "tiny")
    assert [spec.name for spec in model_parallel_variants(run, 2, in_node=False)] == ["fsdp 2", "pipeline 2"]


def test_a_bad_key_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^measure.rounds = 3.*$"):
        resolve_bench({"measure": {"rounds": 3}}, {})
    for run, told in (({"trains": {}}, "trains"), ({"train": {"seed": "x"}}, "^run.train.seed = x")):
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
        assert len(_changed(plain, spec.config(run).model_dump(mode="json"))) == 1, spec.name


def _changed(plain: dict[str, Any], other: dict[str, Any]) -> list[str]:
    sections = [name for name, keys in plain.items() if isinstance(keys, dict)]
    return [f"{name}.{key}" for name in sections for key in plain[name] if plain[name][key] != other[name][key]]


def test_gradients_reduced_once_differ_in_one_key_from_as_many_passes() -> None:
    run = RunConfig()
    specs = {spec.name: spec.config(run).model_dump(mode="json") for spec in techniques(run, 2)}
    assert _changed(specs["micro batch 2"], specs["micro batch 2, reduced once"]) == ["parallel.reduce_every_pass"]
    replicated = replaced(run, parallel=ParallelConfig(strategy="ddp"))
    assert "micro batch 2, reduced once" not in [spec.name for spec in techniques(replicated, 2)]


def test_what_needs_a_corpus_with_ends_or_a_model_of_ours_is_left_out() -> None:
    synthetic = RunConfig.model_validate({"data": {"corpus": {"kind": "synthetic"}}})
    assert "padded" in [spec.name for spec in techniques(RunConfig(), 1)]
    assert "padded" not in [spec.name for spec in techniques(synthetic, 1)]
    custom = {"build": "a.b:c", "vocab_size": 4096, "max_sequence_length": 256}
    own = [spec.name for spec in techniques(RunConfig.model_validate({"model": custom}), 1)]
    assert "attention not fused" not in own


def test_each_saver_by_itself_and_all_of_them() -> None:
    run = RunConfig.model_validate({"train": {"param_dtype": "fp32"}})
    plain = run.model_dump(mode="json")
    found = {spec.name: _changed(plain, spec.config(run).model_dump(mode="json")) for spec in savers(run)}
    recompute, dtype, wrap = "train.activation_checkpointing", "train.param_dtype", "parallel.wrap"
    assert found == {
        "as configured": [], "selectively recomputed": [recompute], "recomputed": [recompute], "bf16": [dtype],
        "by linear": [wrap], "loss at once": ["train.loss_chunk_tokens"], "CPU offload": ["parallel.cpu_offload"],
        "all savers": [dtype, recompute, wrap],
        "all savers and CPU offload": [dtype, recompute, wrap, "parallel.cpu_offload"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "left_out"),
    [
        ({"train": {"activation_checkpointing": "selective"}}, "by linear"),
        ({"parallel": {"wrap": "linear"}}, "selectively recomputed"),
    ],
)
def test_savers_that_cannot_be_together_are_not(keys: dict[str, Any], left_out: str) -> None:
    run = RunConfig.model_validate(keys)
    specs = list(savers(run))
    assert left_out not in [spec.name for spec in specs]
    assert all(spec.config(run) for spec in specs)


def test_the_memory_suite_offloads_nothing_of_a_model_that_is_cut() -> None:
    keys = {"model": {"n_heads": 4, "tied_embeddings": False}, "evaluation": {"sample_tokens": 0}}
    config = BenchConfig(suites=("memory",), run={**keys, "parallel": {"pipeline": 2}, "train": {"micro_batch": 2}})
    (group,) = groups_of(config, Ranks(2, 2, 2**40))
    names = {spec.name for spec in group.variants}
    everything = savers(RunConfig.model_validate({"train": {"param_dtype": "bf16"}}))
    assert {spec.name for spec in everything} - names == {"CPU offload", "all savers and CPU offload"}


@pytest.mark.parametrize(("rounds", "taken"), [(20, 10), (6, 6)])
def test_the_memory_suite_takes_half_as_many_rounds(rounds: int, taken: int) -> None:
    config = BenchConfig.model_validate({"suites": ["memory"], "measure": {"rounds": rounds}})
    (group,) = groups_of(config, Ranks(1, 1))
    assert (group.measure.rounds, group.baseline) == (taken, "as configured")


def test_what_is_kept_in_host_memory_takes_none_of_the_devices() -> None:
    run = RunConfig.model_validate({"train": {"param_dtype": "bf16"}})
    specs = {spec.name: spec for spec in savers(run)}
    offloaded = estimate_memory(specs["CPU offload"], run, Ranks(2, 1, 10**10, 10**10))
    assert (offloaded.device.rest, offloaded.device.weights) == (0, 0)
    assert offloaded.host.rest > 0


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
        (Ranks(12, 3), [12]),  # 2 and 4 ranks are neither parts of a node of three nor whole nodes
        (Ranks(16, 8), [2, 4, 8, 16]),
    ],
)
def test_sizes_divide_the_gang_and_fill_nodes(ranks: Ranks, found: list[int]) -> None:
    assert rank_counts(ranks) == found


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


def test_communication_is_what_training_together_costs_more_than_training_beside_each_other() -> None:
    def blocks(seconds: float, sent: float | None, update: float) -> list[Block]:
        told: dict[str, Any] = {"cpu_seconds": 1, "network_bytes": sent, "parts": {"optimizer": update}}
        return [Block(number=i, steps=1, seconds=seconds, **told) for i in range(6)]

    measured = {
        "1 rank": blocks(0.5, 0, 0.04), "2 jobs of 1 rank": blocks(0.6, 10, 0.04),
        "2 ranks, weak": blocks(0.75, 4000, 0.02), "2 ranks, strong": blocks(0.4, None, 0.02),
    }  # fmt: skip
    specs = {spec.name: spec for spec in variants_of(4, Ranks(2, 1))}
    found = {name: communication_values(measured, spec, tuple(specs.values()), 2) for name, spec in specs.items()}
    assert found["2 ranks, weak"] == {
        "weak": 1.0,
        "network_bytes": 2000.0,
        "communication_seconds": pytest.approx(0.75 - 0.58),  # of two jobs, with half of the update
    }
    assert found["2 jobs of 1 rank"] == {"independent": 1.0, "network_bytes": 5.0}
    assert found["2 ranks, strong"] == {"weak": 0.0}
    together, alone = (a_case(name, blocks=tuple(measured[name])) for name in ("2 ranks, weak", "2 jobs of 1 rank"))
    assert sync_share(together, alone).estimate == pytest.approx(0.17 / 0.75)  # the sync suite tells the same


def test_trainings_of_several_ranks_tell_nothing_of_communication() -> None:
    blocks = [Block(number=i, steps=1, seconds=0.5, cpu_seconds=1) for i in range(6)]
    specs = {spec.name: spec for spec in variants_of(8, Ranks(4, 1), fewest=2)}
    assert list(specs) == ["2 ranks", "2 jobs of 2 ranks", "4 ranks, weak", "4 ranks, strong"]
    assert [specs[name].ranks for name in specs] == [2, 2, 4, 4]
    batches = [specs[name].changes["train"]["global_batch"] for name in specs]
    assert batches == [4, 4, 8, 4]
    measured = dict.fromkeys(specs, blocks)
    found = communication_values(measured, specs["4 ranks, weak"], tuple(specs.values()), 4)
    assert found == {"weak": 1.0}
