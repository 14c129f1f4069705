"""The baseline that is sharded is for models that one rank has no room for."""

import pytest

from convoy.benchmark.groups import Ranks
from convoy.benchmark.plan import run_of
from convoy.benchmark.suites.throughput import groups
from convoy.config.benchmark import BenchConfig

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
