"""The checkpoint suite's groups."""

from typing import Any

import pytest

from convoy.benchmark.groups import Group, Ranks
from convoy.config.benchmark import BenchConfig, add_presets_key, resolve_bench
from convoy.config.errors import ConfigError
from convoy.launch.benchmark.split import planned_block_seconds
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


def with_stores(*stores: str, **more: Any) -> list[Group]:
    asked = add_presets_key({"suites": ["checkpoint"], "models": ["tiny"], "stores": list(stores), **more})
    return groups_of(resolve_bench({}, asked), Ranks(2, 1))


def test_stores_are_cases_of_a_gang_of_their_own_which_nothing_is_compared_with() -> None:
    training, stores = with_stores("local", "/fsx/", "s3://bucket/a", run={"root": "/shared"})
    assert [spec.name for spec in training.variants] == ["without saves", "a save in each block"]
    assert (stores.name, stores.baseline, stores.stores) == ("checkpoint-tiny-stores", None, True)
    roots = {spec.name: str(spec.config(stores.run).root) for spec in stores.variants}
    assert roots == {"local": "/shared", "/fsx": "/fsx", "s3://bucket/a": "s3://bucket/a"}
    assert planned_block_seconds(stores) == 0


def test_without_stores_there_is_the_training_alone() -> None:
    assert len(with_stores()) == 1


def test_one_store_can_be_chosen() -> None:
    (stores,) = with_stores("local", "/fsx", cases={"checkpoint": ["/fsx"]})
    assert [spec.name for spec in stores.variants] == ["/fsx"]


@pytest.mark.parametrize(
    ("stores", "line"),
    [
        (("local", "disk/a"), "stores.1 = disk/a: must be local, the absolute path of a folder, an s3:// prefix"),
        (("ftp://host/a",), "stores.0 = ftp://host/a: must be local"),
        (("/a/b", "/a-b"), "stores.1 = /a-b: its results would be in the same file as those of /a/b"),
        (("/a", "/a/"), "stores = /a, /a/: each may be named once"),
    ],
)
def test_what_is_no_store_is_refused(stores: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as refused:
        with_stores(*stores)
    assert len(str(refused.value).splitlines()) == 1
