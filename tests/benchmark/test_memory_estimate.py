"""What a case takes of a rank's memories, and the largest model that has room there."""

from typing import Any

import pytest

from convoy.benchmark.groups import Group, Ranks, VariantSpec
from convoy.benchmark.memory_estimate import MemoryUse, bytes_in_turns, estimate_memory, largest_model
from convoy.benchmark.memory_fit import gangs_that_fit
from convoy.benchmark.plan import run_of
from convoy.benchmark.results import values
from convoy.benchmark.suites.peers import variants_of as peers
from convoy.config.benchmark import BenchConfig
from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.model.counts import parameter_count
from convoy.planner.step.ddp_buckets import bucket_elements
from tests.benchmark.benches import groups_of, state_bytes
from tests.benchmark.cases import replaced

GIB = 2**30
FSDP = VariantSpec(name="fsdp")
DDP = VariantSpec(name="ddp", changes={"parallel": {"strategy": "ddp"}})


def weights(run: RunConfig) -> int:
    return 4 * parameter_count(run.model)


def taken(run: RunConfig, ranks: Ranks, **spec: object) -> MemoryUse:
    case = estimate_memory(VariantSpec.model_validate({"name": "case", **spec}), run, ranks)
    return case.device


def a_run(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({**sections, "train": {"param_dtype": "bf16"} | dict(sections.get("train", {}))})


def test_other_libraries_build_the_whole_model_before_they_spread_it() -> None:
    run, ranks = a_run(), Ranks(8, 8)
    accelerate = taken(run, ranks, kind="accelerate FSDP2")
    assert accelerate.built == weights(run) * 9 // 8
    assert accelerate.states == 4 * weights(run) // 8
    full = {"train": {"param_dtype": "fp32"}}
    for stage, copies in ((1, 2), (2, 2), (3, 1)):
        assert taken(run, ranks, kind=f"DeepSpeed ZeRO-{stage}").built == weights(run), "two copies in bf16"
        assert taken(run, ranks, kind=f"DeepSpeed ZeRO-{stage}", changes=full).built == copies * weights(run)
    assert taken(run, ranks).built == weights(run) // 8


def test_deepspeed_halves_weights_and_gradients_in_bf16_beside_fp32_masters() -> None:
    ranks = Ranks(8, 8)
    half, full = ({"train": {"param_dtype": dtype}} for dtype in ("bf16", "fp32"))
    run = a_run()
    w = weights(run) // 4
    assert taken(run, ranks, kind="DeepSpeed ZeRO-1", changes=half).states == 4 * w + 12 * w // 8
    assert taken(run, ranks, kind="DeepSpeed ZeRO-1", changes=full).states == 8 * w + 12 * w // 8
    assert taken(run, ranks, kind="DeepSpeed ZeRO-2", changes=half).states == 2 * w + 14 * w // 8
    assert taken(run, ranks, kind="DeepSpeed ZeRO-2", changes=full).states == 4 * w + 16 * w // 8


def test_on_gpus_deepspeed_has_buckets_and_flattens_weights_where_there_is_room() -> None:
    run, small, large = a_run(train={"param_dtype": "fp32"}), Ranks(8, 8, 10**6, 10**9), Ranks(8, 8, 10**11, 10**9)
    kinds = {stage: VariantSpec(name="zero", kind=f"DeepSpeed ZeRO-{stage}") for stage in (1, 2, 3)}
    for stage, bucket_bytes in ((1, 4 * 10**9), (2, 4 * 10**9), (3, 2 * 10**9)):
        on_cpus, on_gpus = estimate_memory(kinds[stage], run, Ranks(8, 8)), estimate_memory(kinds[stage], run, large)
        assert on_gpus.device.states == on_cpus.device.states + bucket_bytes
        assert on_gpus.host == MemoryUse()
    assert taken(run, large, kind="DeepSpeed ZeRO-3").weights == weights(run) // 8 + 2 * 10**9
    for stage in (1, 2):
        assert taken(run, large, kind=f"DeepSpeed ZeRO-{stage}").built == 2 * weights(run)
        without_room = estimate_memory(kinds[stage], run, small)
        assert without_room.device.built == weights(run)
        assert without_room.host == MemoryUse(built=2 * weights(run))


DEEP = {"n_layers": 200, "n_heads": 4, "tied_embeddings": False}
"""A model of which a block, and what is outside of blocks, are a small part."""


@pytest.mark.parametrize(
    ("ranks", "parallel", "train", "bytes_per_parameter"),
    [
        (4, {}, {}, 16 / 4),
        # As one unit: its gradients while they are reduced, what the others send, and the shard that comes of it.
        (4, {"reshard_after_forward": False}, {}, 12 / 4 + 4 + 4 + 4 / 4),
        (4, {"reshard_after_forward": False}, {"micro_batch": 2}, 12 / 4 + 4 + 4 + 4 / 4 + 4 / 4),
        (4, {"strategy": "hsdp", "shard_size": 2}, {}, 16 / 2),
        (4, {"strategy": "ddp"}, {}, 16 + 2),
        (4, {"strategy": "ddp"}, {"micro_batch": 2}, 16 + 2 + 4),
        (4, {"pipeline": 2}, {"micro_batch": 4}, 12 / 4 + (2 + 4) / 2),
    ],
)
def test_ours_takes_what_its_strategy_keeps_of_each_parameter(
    ranks: int, parallel: dict[str, Any], train: dict[str, Any], bytes_per_parameter: float
) -> None:
    """With what a block takes on top."""
    shared = {"global_batch": 16, "micro_batch": 16, "compile": False}
    run = a_run(model=DEEP, train=shared | train, parallel=parallel, evaluation={"sample_tokens": 0})
    parameters = weights(run) // 4
    least = bytes_per_parameter * parameters
    assert 0.98 * least <= taken(run, Ranks(ranks, ranks)).states <= 1.15 * least


def test_offloaded_states_are_in_host_memory_and_only_ours_are_offloaded() -> None:
    run = a_run(model=DEEP, parallel={"cpu_offload": True}, train={"param_dtype": "fp32"})
    ranks = Ranks(8, 8, 80 * GIB, 100 * GIB)
    offloaded = estimate_memory(FSDP, run, ranks)
    assert offloaded.device.states < 0.2 * weights(run), "blocks that are gathered, one after the other"
    assert offloaded.device.rest == 0
    assert offloaded.host.states == pytest.approx(4 * weights(run) / 8, rel=0.01)
    assert taken(run, ranks, kind="baseline").states == 5 * weights(run)
    assert taken(run, ranks, kind="torch DDP").states == pytest.approx(4 * weights(run), rel=0.02)
    on_cpu = estimate_memory(FSDP, run, Ranks(8, 8, 80 * GIB))
    assert on_cpu.device.states >= 4 * weights(run) // 8, "there the host's memory is what computes"


def test_between_steps_only_weights_moments_and_the_buffers_of_others_are_there() -> None:
    run, ranks = a_run(train={"param_dtype": "fp32", "micro_batch": 2}), Ranks(2, 2, 10**11, 10**11)
    w = weights(run) // 4
    late = {"reduce_every_pass": False, "reshard_after_forward": False}
    for parallel in ({}, late):
        assert taken(run, ranks, changes={"parallel": parallel}).rest == 6 * w
    others = {name: taken(run, ranks, kind=name) for name in ("torch DDP", "accelerate FSDP2", "DeepSpeed ZeRO-3")}
    assert {name: other.rest for name, other in others.items()} == {
        "torch DDP": 16 * w, "accelerate FSDP2": 6 * w, "DeepSpeed ZeRO-3": 8 * w + 2 * 10**9,
    }  # fmt: skip
    for stage in (1, 2):
        assert taken(run, ranks, kind=f"DeepSpeed ZeRO-{stage}").rest == (4 + 6) * w, "its buckets are of a backward"


def test_accelerate_has_whole_gradients_between_passes() -> None:
    run, ranks = a_run(train={"global_batch": 8, "micro_batch": 2}), Ranks(2, 2)
    w = weights(run) // 4
    assert taken(run, ranks, kind="accelerate FSDP2").states == 10 * w
    assert taken(run, ranks, kind="accelerate FSDP2", changes={"train": {"micro_batch": 4}}).states == 8 * w


def test_buckets_are_there_from_the_start_and_where_gradients_are_no_views_of_them_beside_these() -> None:
    run = a_run()
    w = weights(run) // 4
    assert taken(run, Ranks(1, 1), kind="baseline") == MemoryUse(states=16 * w, rest=12 * w, weights=4 * w, built=4 * w)
    assert taken(run, Ranks(2, 2), kind="baseline") == MemoryUse(states=20 * w, rest=16 * w, weights=8 * w, built=8 * w)


@pytest.mark.parametrize(
    ("train", "bytes_per_parameter"),
    [
        ({"param_dtype": "fp32"}, 16),
        ({"param_dtype": "fp32", "micro_batch": 4}, 16 + 4),
        ({"param_dtype": "bf16"}, 16 + 2),
        ({"param_dtype": "bf16", "micro_batch": 4}, 16 + 2 + 4),
        ({"param_dtype": "bf16", "compile": True}, 16 + 2),  # compiled blocks keep copies for backward too
    ],
)
def test_torchs_ddp_takes_as_much_as_ours(train: dict[str, Any], bytes_per_parameter: int) -> None:
    """Gradients of all passes but the last, and the copies of autocast, are next to its buckets, which stay."""
    run = a_run(model=DEEP, train={"global_batch": 16, "micro_batch": 8, **train})
    w = weights(run) // 4
    theirs = taken(run, Ranks(2, 2), kind="torch DDP")
    assert bytes_per_parameter * w <= theirs.states <= 1.02 * bytes_per_parameter * w
    assert theirs == MemoryUse(states=theirs.states, rest=16 * w, weights=8 * w, built=8 * w)
    for ranks in (Ranks(2, 2), Ranks(2, 2, 80 * GIB, 100 * GIB)):
        assert taken(run, ranks, changes=DDP.changes) == taken(run, ranks, kind="torch DDP") == theirs


def test_only_our_ddp_has_buffers_for_the_order_of_ranks_and_only_on_cpus() -> None:
    run, more = a_run(model=DEEP), {"train": {"reduce_dtype": "bf16"}}
    theirs = taken(run, Ranks(4, 4), kind="torch DDP")
    assert taken(run, Ranks(4, 4), kind="torch DDP", changes=more) == theirs
    assert taken(run, Ranks(4, 4), changes=DDP.changes).states > theirs.states
    assert taken(run, Ranks(4, 4, 80 * GIB, 100 * GIB), changes=DDP.changes) == theirs


def test_of_cases_that_take_turns_one_makes_its_step_and_the_others_have_no_gradients() -> None:
    """On two ranks 12 bytes for each parameter stay of ours, and with the buckets 16 of those of `transformers`."""
    run, ranks = a_run(), Ranks(2, 2)
    w = weights(run) // 4
    theirs = VariantSpec(name="transformers", kind="baseline")
    ours = taken(run, ranks, changes=DDP.changes)
    both = bytes_in_turns([taken(run, ranks, kind="baseline"), ours])
    assert both == 16 * w + ours.states
    assert bytes_in_turns([taken(run, ranks, kind="baseline")] * 2) == (16 + 20) * w
    group = replaced(strategies(ranks), run=run, baseline=theirs.name, variants=(theirs, DDP))
    (kept,) = gangs_that_fit(group, Ranks(2, 2, both))
    assert (kept.variants, kept.refused) == (group.variants, ())
    (alone,) = gangs_that_fit(group, Ranks(2, 2, both - 1))
    assert [each.spec.name for each in alone.refused] == ["ddp"]


def strategies(ranks: Ranks, model: str = "tiny", **sections: object) -> Group:
    config = BenchConfig.model_validate({"suites": ["strategies"], "models": [model], **sections})
    return groups_of(config, ranks)[0]


def test_what_has_no_room_to_be_built_is_refused_before_it_starts() -> None:
    """The states of fsdp take 3 GiB of each of 32 ranks, and the whole weights 25."""
    run = {"train": {"global_batch": 64}}
    group = strategies(Ranks(32, 8, 20 * GIB), "gpt-7b", run=run, peers=["accelerate", "deepspeed"])
    refused = {each.spec.name: each.reason for each in group.refused}
    assert refused["accelerate FSDP2"].endswith(" GiB on a rank while it is built, which has 20.0 GiB")
    assert {f"DeepSpeed ZeRO-{stage}" for stage in (1, 2, 3)} < set(refused)
    assert "fsdp" not in refused


def test_a_case_that_could_not_be_built_beside_the_others_has_a_gang_of_its_own() -> None:
    """Of the memory for the whole weights of a model and 3 of the 32 shards of them, four cases' states take half."""
    alike = [replaced(FSDP, name=name) for name in ("fsdp", "a", "b", "c")]

    def gangs(*variants: VariantSpec) -> list[list[str]]:
        changes = {"baseline": "fsdp", "variants": variants, "run": a_run(model=DEEP)}
        group = strategies(Ranks(32, 8)).model_copy(update=changes)
        room = weights(group.run) * 35 // 32
        return [[spec.name for spec in gang.variants] for gang in gangs_that_fit(group, Ranks(32, 8, room))]

    assert gangs(*alike) == [["fsdp", "a", "b", "c"]]
    assert gangs(*alike[:3], *peers(("accelerate",))) == [["fsdp", "a", "b"], ["fsdp", "accelerate FSDP2"]]


def test_host_memory_without_room_for_what_is_offloaded_refuses_the_case_with_what_it_needs() -> None:
    config = BenchConfig(suites=("memory",), models=("gpt-7b",))

    def refused(ranks: Ranks) -> dict[str, str]:
        return {each.spec.name: each.reason for gang in groups_of(config, ranks) for each in gang.refused}

    reasons = refused(Ranks(8, 8, 80 * GIB, 10 * GIB))
    assert set(reasons) == {"CPU offload", "all savers and CPU offload"}
    assert reasons["CPU offload"].startswith("needs at least 12.")
    assert reasons["CPU offload"].endswith(
        " GiB of host memory on a rank for weights, gradients and moments, which has 10.0 GiB"
    )
    assert refused(Ranks(8, 8, 80 * GIB, 100 * GIB)) == {}
    assert refused(Ranks(8, 8, 80 * GIB)) == {}, "without a GPU it is left out, and takes nothing"


def test_a_case_needs_room_beside_all_that_its_gang_has() -> None:
    """Its own reference and the group's: three times the weights and moments of ddp, and gradients, are 40 bytes."""
    run = a_run()
    whole = strategies(Ranks(2, 1))
    third = replaced(DDP, name="third", baseline="other")
    group = replaced(whole, run=run, variants=(DDP, replaced(DDP, name="other"), third))
    room = 10 * weights(run) - 1
    (kept,) = gangs_that_fit(group, Ranks(2, 1, room))
    assert [spec.name for spec in kept.variants] == ["ddp", "other"]
    assert kept.refused[0].reason.startswith("needs, next to ddp and other, at least ")


def found_largest(ranks: Ranks, *specs: VariantSpec) -> dict[str, TransformerConfig]:
    config = BenchConfig(suites=("strategies",), models=("gpt2-124m",))
    found = {spec.name: largest_model(spec, run_of(config, "gpt2-124m"), ranks) for spec in specs}
    return {name: most for name, most in found.items() if isinstance(most, TransformerConfig)}


def refused(spec: VariantSpec, model: TransformerConfig, ranks: Ranks) -> bool:
    run = replaced(run_of(BenchConfig(models=("gpt2-124m",)), "gpt2-124m"), model=model)
    alone = replaced(spec, baseline=None)
    group = replaced(strategies(ranks), run=run, baseline=spec.name, variants=(alone,))
    try:
        gangs_that_fit(group, ranks)
    except ConfigError:
        return True
    return False


@pytest.mark.processes
def test_the_largest_model_is_the_one_of_most_layers_that_is_not_refused() -> None:
    ranks = Ranks(8, 8, 24 * GIB, 60 * GIB)
    offloaded = VariantSpec(name="offloaded", changes={"parallel": {"cpu_offload": True}})
    once = VariantSpec(name="once", changes={"parallel": {"reshard_after_forward": False}})
    specs = (DDP, FSDP, once, offloaded, *peers(("torch",)))
    found = found_largest(ranks, *specs)
    for spec in specs:
        most = found[spec.name]
        more = replaced(most, n_layers=most.n_layers + 1)
        assert [refused(spec, model, ranks) for model in (most, more)] == [False, True], spec.name
    layers = {name: most.n_layers for name, most in found.items()}
    assert layers["ddp"] == pytest.approx(layers["torch DDP"], rel=0.05)
    assert max(layers["ddp"], layers["torch DDP"]) < layers["once"] < layers["fsdp"] < layers["offloaded"]


def test_building_the_whole_model_on_each_rank_is_no_limit_of_another_librarys_largest_model() -> None:
    """It is how it is measured here."""
    few, many = Ranks(8, 8, 24 * GIB, 60 * GIB), Ranks(32, 8, 24 * GIB, 60 * GIB)
    specs = (DDP, FSDP, *peers(("accelerate", "deepspeed")))
    found = found_largest(few, *specs)
    layers = {name: most.n_layers for name, most in found.items()}
    assert layers["ddp"] < layers["DeepSpeed ZeRO-1"] < layers["DeepSpeed ZeRO-2"] < layers["DeepSpeed ZeRO-3"]
    assert layers["accelerate FSDP2"] == pytest.approx(layers["fsdp"], rel=0.03)
    assert refused(specs[2], found["accelerate FSDP2"], few)
    for name, most in found_largest(many, *specs[1:3]).items():
        assert most.n_layers > 3.9 * layers[name]


def test_each_strategy_tells_its_largest_model_with_the_memory_it_is_reckoned_for() -> None:
    group = strategies(Ranks(4, 4, 24 * GIB, 60 * GIB), peers=["accelerate"])
    for spec in group.variants:
        told = dict(spec.values)
        assert told[values.RANK_MEMORY_BYTES] == 24 * GIB
        assert told[values.RANK_HOST_BYTES] == 60 * GIB
        most = replaced(group.run.model, n_layers=int(told[values.LARGEST_MODEL_LAYERS]))
        assert told[values.LARGEST_MODEL_PARAMETERS] == parameter_count(most)
        assert spec.not_measured == {}
    ddp, fsdp = group.variants[:2]
    assert fsdp.values[values.LARGEST_MODEL_PARAMETERS] > 3.9 * ddp.values[values.LARGEST_MODEL_PARAMETERS]
    last_bucket = 4 * bucket_elements(group.run.model, "bf16")[-1]  # of all ranks, where there is no GPU
    assert state_bytes(ddp, group.run, Ranks(4, 4)) == pytest.approx(
        4.2 * weights(group.run) + 4 * last_bucket, rel=0.1
    )


def test_without_a_ranks_memory_no_largest_model_is_told_and_why() -> None:
    group = strategies(Ranks(2, 1))
    for spec in group.variants:
        assert values.LARGEST_MODEL_PARAMETERS not in spec.values
        assert spec.not_measured == {"largest model": "the memory of a rank is not known"}
    custom = {"model": {"build": "a.b:c", "vocab_size": 4096, "max_sequence_length": 256}}
    assert largest_model(FSDP, a_run(**custom), Ranks(2, 1, GIB)) == "the size of a custom model is not known"
    assert largest_model(FSDP, a_run(), Ranks(2, 1, 1000)) == "a model of 1 of its layers has no room"
