"""The search over machines, and that the presets are what it finds."""

import functools
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.config.errors import ConfigError
from convoy.config.load import read_overrides, read_run, resolve
from convoy.config.ranks import check_ranks
from convoy.config.run import RunConfig
from convoy.launch.support import world
from convoy.planner.calibration import shipped
from convoy.planner.machine import machine_of
from convoy.planner.market import search
from convoy.planner.memory import memory
from convoy.planner.ranking import loosened, ranked
from convoy.planner.search import ALIKE, Search, Task
from convoy.planner.step import step_time
from convoy.planner.workload import Workload
from convoy.results.plan import key_words
from convoy.results.plan_search import Found, PlanSearch
from tests.campaign import examples
from tests.planner.test_plan import PRESETS, planned, preset


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_is_what_the_search_recommends_for_its_machines(path: Path) -> None:
    """Or as fast, as far as predictions can tell, and with memory that can be counted on."""
    config = preset(path.stem)
    fastest = Search(task(config), shipped()).fastest(machine_of(config), config.cluster.nodes)[0]
    own = workload(config)
    assert memory(own).reliable
    assert step_time(own).total <= (1 + ALIKE) * fastest.time.total, fastest.job


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_saves_as_often_as_is_best_as_far_as_that_matters(path: Path) -> None:
    """An interval a quarter off the best costs 3 % more of what saves and lost steps cost together."""
    saves = planned(path.stem).saves
    assert saves is not None
    assert saves.every_steps is not None
    assert saves.best_every_steps is not None
    assert 0.75 <= saves.every_steps / saves.best_every_steps <= 1.33
    assert saves.overhead <= 1.05 * saves.best_overhead


def test_30b_on_two_p4d_is_never_recommended_per_block() -> None:
    """At micro batch 1 it takes 94 % of memory."""
    config = preset("custom-30b-p4d")
    found = Search(task(config), shipped()).fastest(machine_of(config), 2)
    assert all(way.job.parallel.wrap == "linear" or way.job.parallel.tensor > 1 for way in found)
    assert all(way.memory.reliable for way in found)


def test_175b_per_linear_is_what_fits_where_a_block_does_not() -> None:
    config = preset("gpt-175b-p4d")
    found = Search(task(config), shipped()).best(machine_of(config), 24)
    assert found is not None
    assert found.job.parallel.wrap == "linear"
    assert found.memory.reliable


def task(config: RunConfig) -> Task:
    assert config.model is not None
    return Task(config.model, config.data.sequence_length, config.train)  # type: ignore[arg-type]


def workload(config: RunConfig) -> Workload:
    machine, train, parallel = machine_of(config), config.train, config.parallel
    return Workload(config.model, config.data.sequence_length, train, parallel, machine, config.cluster.nodes)  # type: ignore[arg-type]


@functools.cache
def found_for_7b() -> PlanSearch:
    return search(preset("gpt-7b-p4d"), nodes=(1, 4, 3), max_usd=100_000)


def test_a_search_is_by_cost_and_marks_what_nothing_beats() -> None:
    told = found_for_7b()
    usd = [(row.stale, row.usd) for row in told.found if row.usd is not None]
    assert usd == sorted(usd)
    assert told.found[0].pareto
    fastest = min((row for row in told.found if row.within and not row.stale), key=lambda row: row.hours)
    assert fastest.pareto
    assert all(row.memory_share <= 0.9 for row in told.found)
    assert {row.market for row in told.found} == {"on_demand", "capacity_block", "spot"}
    assert PlanSearch.model_validate_json(told.model_dump_json()) == told


def test_machines_that_cannot_share_a_batch_are_told() -> None:
    why = {(each.instance_type, each.nodes): each.why for each in found_for_7b().unfit}
    assert why[("p4d.24xlarge", 3)] == "a global batch of 1024 sequences cannot be shared out evenly over 24 ranks"


def test_what_is_found_is_what_the_plan_of_its_keys_says() -> None:
    row = next(row for row in found_for_7b().found if (row.instance_type, row.nodes) == ("p5.48xlarge", 4))
    base = {"model": "gpt-7b", "data": {"sequence_length": 2048}, "train": {"global_batch": 1024}}
    cluster = {"backend": "batch", "instance_type": row.instance_type, "nodes": row.nodes}
    config = resolve(read_run(str({**base, "cluster": cluster})), read_overrides(key_words(row.keys)))
    assert step_time(workload(config)).total == pytest.approx(row.step_seconds)


def test_a_configuration_of_this_host_is_searched_on_the_machines_that_are_asked_for() -> None:
    told = search(preset("default"), instances=("g5.xlarge",), nodes=(2,))
    assert {row.instance_type for row in told.found} == {"g5.xlarge"}


def test_a_pipeline_is_searched_where_training_takes_one() -> None:
    """With the keys that it needs, one micro batch for each stage at least; GPT's embedding and head are one weight."""
    words = "model=llama-70b data.tokenizer.vocab_size=32000 train.global_batch=128"
    config = preset("llama-13b-p5", words)
    told = search(config, instances=("p4d.24xlarge",), nodes=(64,))
    staged = [row for row in told.found if "parallel.pipeline" in row.keys]
    assert staged
    assert any("parallel.pipeline takes the time" in line for line in told.assumed)
    for row in staged:
        cluster = f"cluster.instance_type={row.instance_type} cluster.nodes={row.nodes}"
        own = preset("llama-13b-p5", f"{words} {cluster} {key_words(row.keys)}")
        check_ranks(own, world(own))
        assert step_time(workload(own)).total == pytest.approx(row.step_seconds)
    gpt = search(preset("gpt-175b-p5"), nodes=(16,))
    assert not any("parallel.pipeline" in row.keys for row in gpt.found)


ROWS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12)


@given(ROWS, st.integers(1, 9), st.integers(1, 9))
@examples(60)
def test_nothing_within_the_limits_beats_what_is_marked(
    values: list[tuple[int, int]], max_usd: int, max_hours: int
) -> None:
    rows = ranked([row(usd, hours) for usd, hours in values], max_usd, max_hours)
    within = [(each.usd, each.hours) for each in rows if each.within]
    assert within == [(usd, hours) for usd, hours in sorted(within)] or len({usd for usd, _ in within}) < len(within)
    assert all(each.usd <= max_usd and each.hours <= max_hours for each in rows if each.within and each.usd)
    for each in rows:
        beaten = any(u <= each.usd and h <= each.hours and (u, h) != (each.usd, each.hours) for u, h in within)  # type: ignore[operator]
        assert each.pareto == (each.within and not beaten)


def test_an_old_price_comes_after_newer_ones_and_rules_nothing_out() -> None:
    told = search(preset("gpt-7b-p4d"), instances=("p5.48xlarge",), nodes=(4,))
    dates = {row.market: (row.price_date, row.stale) for row in told.found}
    assert dates["capacity_block"] == (date(2024, 12, 31), True)
    assert not dates["on_demand"][1]
    usd = {row.market: row.usd or 0.0 for row in told.found}
    assert usd["capacity_block"] < usd["on_demand"]
    assert [row.market for row in told.found] == ["spot", "on_demand", "capacity_block"]
    assert [row.pareto for row in told.found] == [True, True, False]
    assert all(row.price_source for row in told.found)


def test_what_a_search_rests_on_is_said_once() -> None:
    told = search(preset("gpt-7b-p4d"), instances=("p4d.24xlarge", "p6-b200.48xlarge"), nodes=(2, 4))
    assert len(set(told.assumed)) == len(told.assumed)
    assert sum("a B200 reaches as much of its peak as an H100 does" in line for line in told.assumed) == 1
    assert sum("of p4d.24xlarge on spot 5 to 10 %" in line for line in told.assumed) == 1
    assert told.no_spot == ("p6-b200.48xlarge",)
    assert {row.market for row in told.found if row.instance_type == "p6-b200.48xlarge"} == {
        "on_demand", "capacity_block",
    }  # fmt: skip
    assert told.calibration.startswith(str(shipped().date))


@pytest.mark.parametrize(
    ("max_usd", "max_hours", "told"),
    [
        (5, None, ["--max-usd 5: must be at least 10"]),
        (None, 1, ["--max-hours 1: must be at least 2.0"]),
        (25, 3, ["--max-usd 25: must be at least 30", "--max-hours 3: must be at least 9.0"]),
        (5, 3, ["--max-usd 5: must be at least 30"]),
        (5, 1, ["the cheapest of all is", "the fastest of all is"]),
        (30, 2, []),
    ],
)
def test_limits_that_nothing_keeps_are_told_how_far_to_go(
    max_usd: float | None, max_hours: float | None, told: list[str]
) -> None:
    rows = ranked([row(10, 9), row(30, 2), row(40, 4)], max_usd, max_hours)
    found = list(loosened(rows, max_usd, max_hours))
    assert [line[: len(start)] for line, start in zip(found, told, strict=True)] == told


def test_a_limit_is_not_loosened_to_what_an_old_price_promises() -> None:
    rows = ranked([row(10, 9).model_copy(update={"stale": True}), row(30, 2)], 5, None)
    (line,) = loosened(rows, 5, None)
    assert line.startswith("--max-usd 5: must be at least 30")


def row(usd: float, hours: float) -> Found:
    told: dict[str, Any] = {
        "instance_type": "p4d.24xlarge", "nodes": 1, "market": "spot", "keys": {}, "step_seconds": 1.0, "mfu": 0.5,
        "tokens_per_second": 1.0, "memory_share": 0.5, "least_usd": None, "most_usd": None, "usd_per_hour": 1.0,
        "price_date": date(2026, 11, 9), "price_source": "a list", "stale": False, "pareto": False, "within": True,
    }  # fmt: skip
    return Found(**told, hours=hours, usd=usd)


def test_a_wrong_type_is_told() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.instance_type = p4x: not in the catalog"):
        search(preset("gpt-7b-p4d"), instances=("p4x",))
