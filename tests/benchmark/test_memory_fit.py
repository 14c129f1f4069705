"""What has room in a rank's memory, and what becomes of what has not."""

import pytest

from convoy.benchmark.groups import Group, Ranks, VariantSpec
from convoy.benchmark.memory_estimate import CaseMemory, bytes_in_turns, estimate_memory
from convoy.benchmark.memory_fit import SHARE_OF_STATES, gangs_that_fit
from convoy.benchmark.plan import run_of
from convoy.benchmark.suites.scaling import fewest_ranks_with_room, variants_of
from convoy.config.benchmark import BenchConfig
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.model.counts import parameter_count
from tests.benchmark.benches import groups_of, ready
from tests.benchmark.cases import replaced

GIB = 2**30


def once(run: RunConfig) -> int:
    """Bytes of the states of the whole model."""
    return 16 * parameter_count(run.model)


def turns(cases: int) -> float:
    """Of the states of one of as many that take turns: a quarter are gradients, which one has at a time."""
    return 0.75 * cases + 0.25


def of_its_cases(gang: Group, ranks: Ranks) -> list[CaseMemory]:
    return [found for spec in gang.variants if (found := estimate_memory(spec, gang.run, ranks))]


def gangs(suite: str, ranks: Ranks, model: str = "tiny", **run: object) -> list[Group]:
    config = BenchConfig.model_validate({"suites": [suite], "models": [model], "run": run})
    return [group for group in groups_of(config, ranks) if "model-parallel" not in group.name]


def test_where_there_is_room_for_all_nothing_changes() -> None:
    (known,) = gangs("throughput", Ranks(4, 1, 10**15))
    (unknown,) = gangs("throughput", Ranks(4, 1))
    assert known == unknown
    assert known.refused == ()


def test_what_has_no_room_by_itself_is_refused_with_what_it_would_need() -> None:
    found = gangs("strategies", Ranks(32, 8, 40 * GIB), "gpt-7b", train={"global_batch": 64})
    refused = {each.spec.name: each.reason for gang in found for each in gang.refused}
    assert set(refused) == {"ddp", "fsdp, gathered once"}
    for reason in refused.values():
        assert reason.startswith("needs at least ")
        assert reason.endswith("40.0 GiB")
    assert {gang.baseline for gang in found} == {"fsdp"}, "the first that has room takes its place"
    assert all(spec.name not in refused for gang in found for spec in gang.variants)


def test_a_model_without_any_room_is_told_in_one_line() -> None:
    with pytest.raises(ConfigError) as refused:
        gangs("throughput", Ranks(2, 1, 12 * GIB), "gpt-175b")
    assert str(refused.value).startswith("model = gpt-175b: any case of throughput-gpt-175b needs at least ")
    assert "12.0 GiB" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_cases_without_room_beside_each_other_have_gangs_of_their_own_each_with_the_one_they_are_compared_with() -> (
    None
):
    (whole,) = gangs("throughput", Ranks(1, 1))
    each = once(whole.run)
    cut = gangs_that_fit(whole, Ranks(1, 1, int(turns(4) * each / SHARE_OF_STATES)))
    assert [gang.name for gang in cut] == [f"throughput-tiny-{i}" for i in range(1, len(cut) + 1)]
    assert all(gang.baseline == "ours" and len(gang.variants) <= 4 for gang in cut)
    others = [spec.name for gang in cut for spec in gang.variants if spec.name != "ours"]
    assert others == [spec.name for spec in whole.variants if spec.name != "ours"]
    assert all([spec.name for spec in gang.variants].count("ours") == 1 for gang in cut)


def test_a_case_with_a_reference_of_its_own_has_that_in_its_gang() -> None:
    (whole,) = gangs("strategies", Ranks(2, 1))
    of_its_own = VariantSpec(name="other", baseline="fsdp")
    group = replaced(whole, variants=(*whole.variants, of_its_own))
    for gang in gangs_that_fit(group, Ranks(2, 1, 2 * once(group.run))):
        names = [spec.name for spec in gang.variants]
        assert gang.baseline in names
        assert all(gang.baseline_of(spec) in [*names, None] for spec in gang.variants)


def test_two_cases_are_compared_though_they_take_more_than_their_share() -> None:
    (whole,) = gangs("throughput", Ranks(1, 1))
    cut = gangs_that_fit(whole, Ranks(1, 1, int(2.3 * once(whole.run))))
    assert [len(gang.variants) for gang in cut] == [2] * (len(whole.variants) - 1)


def test_the_ready_benchmark_of_one_gpu_has_room_on_it() -> None:
    memory = 80 * GIB
    ranks = Ranks(1, 1, memory)
    found = groups_of(ready("one-gpu"), ranks)
    assert {gang.suite for gang in found} == {"throughput", "memory", "utilisation", "checkpoint"}
    assert not any(gang.refused for gang in found)
    for gang in found:
        held = bytes_in_turns(each.device for each in of_its_cases(gang, ranks))
        assert held <= memory * SHARE_OF_STATES


@pytest.mark.parametrize(("memory_gib", "fewest"), [(None, 1), (800, 1), (80, 8), (10, 32)])
def test_scaling_begins_with_as_few_ranks_as_have_room(memory_gib: int | None, fewest: int) -> None:
    config = BenchConfig(models=("gpt-7b",))
    memory = None if memory_gib is None else memory_gib * GIB
    assert fewest_ranks_with_room(run_of(config, "gpt-7b"), Ranks(32, 8, memory)) == fewest


def test_what_is_offloaded_has_its_share_of_host_memory() -> None:
    offloaded = {"parallel": {"cpu_offload": True}}
    run = run_of(BenchConfig(models=("gpt-7b",), run=offloaded), "gpt-7b")
    assert fewest_ranks_with_room(run, Ranks(32, 8, 800 * GIB, 800 * GIB)) == 1
    assert fewest_ranks_with_room(run, Ranks(32, 8, 800 * GIB, 80 * GIB)) == 8
    (small,) = gangs("strategies", Ranks(4, 4), **offloaded)
    cut = gangs_that_fit(small, Ranks(4, 4, 10**15, 3 * once(small.run)))
    assert [len(gang.variants) for gang in cut] != [len(small.variants)]
    for gang in cut:
        held = bytes_in_turns(each.host for each in of_its_cases(gang, Ranks(4, 4, 10**15, 10**15)))
        assert held <= 3 * SHARE_OF_STATES * once(small.run)


def test_scaling_stays_in_one_gang() -> None:
    (gang,) = gangs("scaling", Ranks(32, 8, 40 * GIB), "gpt-7b", train={"global_batch": 64})
    assert gang.baseline == "16 ranks"
    assert [spec.name for spec in gang.variants][:2] == ["16 ranks", "2 jobs of 16 ranks"]
    held = bytes_in_turns(each.device for each in of_its_cases(gang, Ranks(32, 8)))
    assert held <= 40 * GIB * SHARE_OF_STATES


def test_where_only_the_whole_gang_has_room_it_is_measured_and_the_smaller_reference_refused() -> None:
    (gang,) = gangs("scaling", Ranks(32, 8, 10 * GIB), "gpt-7b", train={"global_batch": 64})
    assert [spec.name for spec in gang.variants] == ["32 ranks"]
    (refused,) = gang.refused
    assert refused.spec.name == "16 ranks"
    states = bytes_in_turns(
        estimate_memory(spec, gang.run, Ranks(32, 8)).device for spec in variants_of(64, Ranks(32, 8), None, 16)
    )
    assert refused.reason == (
        f"needs, with the cases compared with it, at least {states / GIB:,.1f} GiB on a rank for weights, gradients "
        "and moments, which have 60 % of 10.0 GiB"
    )
