"""The baseline that is sharded is for models whose other baseline has no room."""

import pytest

from convoy.benchmark.groups import Ranks
from convoy.benchmark.memory_estimate import estimate_memory, gang_bytes
from convoy.benchmark.memory_fit import gangs_that_fit
from convoy.benchmark.plan import run_of
from convoy.benchmark.results.values import BASELINE, BASELINES, SHARDED_BASELINE
from convoy.benchmark.suites.throughput import OURS, groups
from convoy.config.benchmark import BenchConfig
from convoy.config.model import TransformerConfig
from convoy.model.counts import parameter_count

GIB = 2**30


@pytest.mark.parametrize(
    ("model", "ranks", "expected"),
    [
        ("gpt-7b", Ranks(32, 8, 40 * GIB, 128 * GIB), ["baseline", "baseline, sharded", "ours"]),
        ("gpt2-124m", Ranks(32, 8, 40 * GIB, 128 * GIB), ["baseline", "ours"]),
        ("gpt-7b", Ranks(1, 1, 40 * GIB, 128 * GIB), ["baseline", "ours"]),  # nobody to share with
        ("gpt-7b", Ranks(32, 8), ["baseline", "ours"]),  # how much has room is not known
    ],
)
def test_a_model_without_room_on_a_rank_has_a_second_baseline(model: str, ranks: Ranks, expected: list[str]) -> None:
    config = BenchConfig(suites=("throughput",), models=(model,))
    [group] = groups(config, {model: run_of(config, model)}, ranks)
    assert [spec.name for spec in group.variants][: len(expected)] == expected


def test_the_sharded_baseline_adds_its_gradients_in_fp32_whatever_the_run_reduces_in() -> None:
    """Of several passes each rank keeps the whole gradients, 4 bytes for each parameter."""
    ranks = Ranks(32, 8, 40 * GIB, 128 * GIB)
    train = {"reduce_dtype": "bf16", "global_batch": 64, "micro_batch": 1}
    run = run_of(BenchConfig(models=("gpt-7b",), run={"train": train}), "gpt-7b")
    [group] = groups(BenchConfig(models=("gpt-7b",)), {"gpt-7b": run}, ranks)
    (sharded,) = (spec for spec in group.variants if spec.name == SHARDED_BASELINE)
    assert isinstance(run.model, TransformerConfig)
    assert estimate_memory(sharded, run, ranks).device.states > 4 * parameter_count(run.model)


def test_a_baseline_without_room_next_to_ours_is_replaced_by_the_sharded_one() -> None:
    """By itself the frozen baseline has room in either case."""
    config = BenchConfig(models=("gpt2-124m",))
    run = run_of(config, "gpt2-124m")

    def measured(memory_bytes: int) -> set[str]:
        ranks = Ranks(32, 8, memory_bytes, 128 * GIB)
        [group] = groups(config, {"gpt2-124m": run}, ranks)
        return {spec.name for gang in gangs_that_fit(group, ranks) for spec in gang.variants}

    ranks = Ranks(32, 8, 40 * GIB, 128 * GIB)
    [group] = groups(config, {"gpt2-124m": run}, ranks)
    both = [estimate_memory(spec, run, ranks).device for spec in group.variants if spec.name in (BASELINE, OURS)]
    assert both[0].states < gang_bytes(both) - 1
    assert measured(gang_bytes(both)) & set(BASELINES) == {BASELINE}
    assert measured(gang_bytes(both) - 1) & set(BASELINES) == {SHARDED_BASELINE}
