"""The checkpoint suite's groups."""

import pytest

from convoy.benchmark.groups import Group, Ranks
from convoy.config.benchmark import BenchConfig, add_presets_key
from tests.benchmark.benches import groups_of


def planned(model: str, ranks: int, pace: float | None) -> Group:
    asked = {"suites": ["checkpoint"], "models": [model], "run": {"checkpoint": {"write_mb_per_second": pace}}}
    (group,) = groups_of(BenchConfig.model_validate(add_presets_key(asked)), Ranks(ranks, 1))
    return group


@pytest.mark.parametrize(
    ("model", "ranks", "pace", "seconds"),
    [
        ("tiny", 2, 100.0, 1.1 * 12 * 2_615_424 / 2 / 100e6 + 0.5),
        ("gpt2-124m", 8, 50.0, 1.1 * 12 * 124_439_808 / 8 / 50e6 + 0.5),
        ("gpt2-124m", 2, None, 0.4),  # as `measure` has it
        ("gpt2-124m", 1, 10.0, 33.5),  # 1.5 GB: no part is held back for longer
    ],
)
def test_a_block_is_longer_than_a_save_at_its_pace(model: str, ranks: int, pace: float | None, seconds: float) -> None:
    assert planned(model, ranks, pace).measure.block_seconds == pytest.approx(seconds)
