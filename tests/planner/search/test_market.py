"""The search over machines, and that the presets are what it finds."""

import functools
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.config.errors import ConfigError
from convoy.config.loader import read_overrides, resolve
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig, check_ranks
from convoy.display.page import Page, Text
from convoy.launch.checks.compatibility import world
from convoy.planner.config_keys import overrides_text
from convoy.planner.measurements import Measurements
from convoy.planner.memory.rank import rank_memory
from convoy.planner.pages.search import search_page
from convoy.planner.plan import plan
from convoy.planner.search.market import SEARCHED, SearchBase, search_machines
from convoy.planner.search.result import PlanSearch, SearchRow, mark_and_sort
from convoy.planner.search.search import ALIKE, StrategySearch, TrainingSpec
from convoy.planner.step.calibration import shipped_calibration
from convoy.planner.step.step_time import step_time
from convoy.planner.workload import as_rented, machine_of
from tests.campaign import examples
from tests.planner.test_plan import PRESETS, planned, preset
from tests.planner.workloads import workload_of

pytestmark = [pytest.mark.campaign, pytest.mark.processes]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_is_what_the_search_recommends_for_its_machines(path: Path) -> None:
    """Or as fast, as far as predictions can distinguish, and with memory that can be counted on."""
    config = preset(path.stem)
    fastest = StrategySearch(task(config), shipped_calibration()).fastest(machine_of(config), config.cluster.nodes)[0]
    own = workload_of(config)
    assert rank_memory(own).reliable
    assert step_time(own).total <= (1 + ALIKE) * fastest.time.total, fastest.job


def test_30b_on_two_p4d_is_never_recommended_per_block() -> None:
    """At micro batch 1 it takes 94 % of memory."""
    config = preset("custom-30b-p4d")
    found = StrategySearch(task(config), shipped_calibration()).fastest(machine_of(config), 2)
    assert all(way.job.parallel.wrap == "linear" or way.job.parallel.tensor > 1 for way in found)
    assert all(way.memory.reliable for way in found)


def test_175b_per_linear_is_what_fits_where_a_block_does_not() -> None:
    config = preset("gpt-175b-p4d")
    found = StrategySearch(task(config), shipped_calibration()).best(machine_of(config), 24)
    assert found is not None
    assert found.job.parallel.wrap == "linear"
    assert found.memory.reliable


def lines(page: Page) -> list[str]:
    return [block.text for block in page.blocks if isinstance(block, Text)]


def task(config: RunConfig) -> TrainingSpec:
    assert isinstance(config.model, TransformerConfig)
    return TrainingSpec(config.model, config.data.sequence_length, config.train)


@functools.cache
def found_for_7b() -> PlanSearch:
    return search_machines(preset("gpt-7b-p4d"), nodes=(1, 4, 3), max_usd=100_000)


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


def test_a_batch_that_ranks_share_unevenly_is_searched_as_training_takes_it() -> None:
    """1,024 sequences over 24 ranks: 43 on most of them, in passes of as many on each rank."""
    (row,) = (
        each for each in found_for_7b().found
        if (each.instance_type, each.nodes, each.market) == ("p4d.24xlarge", 3, "spot")
    )  # fmt: skip
    own = preset("gpt-7b-p4d", overrides_text(row.keys))
    check_ranks(own, world(own))
    job = workload_of(own)
    assert (job.ranks, job.sequences_per_rank) == (24, 43)
    assert job.sequences_per_pass == job.train.micro_batch


def test_machines_with_more_ranks_than_sequences_are_refused_as_a_run_is() -> None:
    words = "train.global_batch=12 parallel.shard_size=null cluster.nodes=16"
    config = preset("gpt-7b-p4d", words)
    (unfit,) = search_machines(config, instances=("p4d.24xlarge",), nodes=(16,)).unfit
    with pytest.raises(ConfigError) as refused:
        check_ranks(config, world(config))
    assert unfit.why == str(refused.value)


KUBERNETES = "cluster.backend=kubernetes"
"""Which has spot instances for training on several."""


def test_where_training_would_hardly_ever_end_on_spot_other_markets_are_found() -> None:
    wait = Measurements(replacement_seconds=2e6)
    told = search_machines(
        preset("llama-13b-p5", KUBERNETES), instances=("p4d.24xlarge",), nodes=(64,), measurements=wait
    )
    (unfit,) = told.unfit
    assert {row.market for row in told.found} == {"on_demand", "capacity_block"}
    assert (unfit.instance_type, unfit.nodes, unfit.market) == ("p4d.24xlarge", 64, "spot")
    assert "it would hardly ever end" in unfit.why
    assert f"64 × p4d.24xlarge (spot): {unfit.why}." in lines(search_page(told))


CONTRACT = (
    '\'cluster.price={usd_per_hour: 11.5, date: 2026-11-01, source: "ours: #7", usd_per_hour_on_demand: 20,'
    " on_demand_date: 2026-11-02}'"
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "words", "nodes"),
    [
        ("gpt-7b-p4d", "cluster.nproc_per_node=4", (2, 3)),
        ("gpt-7b-p5", "", (2,)),
        ("gpt-7b-p5", f"cluster.backend=batch cluster.market=capacity_block {CONTRACT}", (1,)),
        ("gpt-7b-p5", f"{CONTRACT}", (2,)),
        ("gpt-175b-p4d", "cluster.backend=kubernetes", (32,)),
        ("default", "model=llama-13b train.global_batch=1024 train.steps=5000 data.sequence_length=2048", (2,)),
    ],
)
def test_the_keys_of_each_row_are_planned_as_the_row_says(name: str, words: str, nodes: tuple[int, ...]) -> None:
    """Laid on what was asked about: step, memory, time and cost, and how often is best to save."""
    config = preset(name, words)
    rows = search_machines(config, nodes=nodes).found
    assert {row.instance_type for row in rows} == {"p4d.24xlarge", "p5.48xlarge"}
    for row in rows:
        told = plan(as_rented(resolve(config.model_dump(mode="json"), read_overrides(overrides_text(row.keys)))))
        there = told.machines
        assert (there.instance_type, there.nodes, there.market) == (row.instance_type, row.nodes, row.market)
        assert told.step is not None
        assert told.memory is not None
        assert told.configured_market is not None
        assert told.saves is not None
        assert told.step.seconds == pytest.approx(row.step_seconds)
        assert told.memory.share == pytest.approx(row.memory_share)
        assert told.configured_market.seconds / 3600 == pytest.approx(row.hours)
        assert (told.configured_market.cost and told.configured_market.cost.usd) == row.usd
        assert told.saves.every_steps == told.saves.best_every_steps


def test_one_s_own_price_is_of_its_market_and_on_demand_where_that_is_told() -> None:
    found = search_machines(preset("gpt-7b-p5", CONTRACT), instances=("p5.48xlarge",), nodes=(2,)).found
    usd = {row.market: (row.usd_per_hour, row.price_source) for row in found}
    assert usd["spot"] == (11.5, "ours: #7")
    assert usd["on_demand"] == (20.0, "cluster.price")
    assert usd["capacity_block"][0] not in (11.5, 20.0)


def test_keys_are_what_differs_from_what_they_are_laid_on() -> None:
    """Not from the defaults, nor from what was asked for beside it."""
    base = preset("gpt-7b-p5", "train.micro_batch=8 train.activation_checkpointing=selective")
    config = preset("gpt-7b-p5", "train.steps=1000 cluster.region=us-west-2")
    told = search_machines(config, instances=("p5.48xlarge",), nodes=(2,), base=SearchBase("mine.yaml", base))
    (row,) = (each for each in told.found if each.market == "spot")
    assert told.laid_on == "mine.yaml"
    assert row.keys["train.steps"] == 1000
    assert row.keys["cluster.region"] == "us-west-2"
    assert row.keys["parallel.reduce_every_pass"] is True
    assert row.trained["train.micro_batch"] == 8
    assert not {"train.micro_batch", "cluster.nodes", "cluster.market"} & row.keys.keys()
    (other,) = (each for each in told.found if each.market == "on_demand")
    assert other.keys["cluster.market"] == "on_demand"


def test_what_is_found_already_needs_no_keys() -> None:
    only = partial(search_machines, instances=("p5.48xlarge",), nodes=(2,), markets=("spot",))
    (row,) = only(preset("gpt-7b-p5")).found
    (same,) = only(preset("gpt-7b-p5", overrides_text(row.keys))).found
    assert (same.keys, same.usd) == ({}, row.usd)


@pytest.mark.parametrize(
    ("words", "left", "why"),
    [
        ("", {(2, market) for market in SEARCHED}, "cluster.nodes = 1: must be at least 2"),
        (
            "cluster.backend=batch cluster.market=on_demand",
            {(nodes, market) for nodes in (1, 2) for market in ("on_demand", "capacity_block")},
            "cluster.market = spot: AWS Batch runs no multi-node jobs on spot",
        ),
        ("cluster.backend=local", {(nodes, market) for nodes in (1, 2) for market in SEARCHED}, ""),
    ],
)
def test_what_the_backend_does_not_run_is_left_out_and_told(words: str, left: set[tuple[int, str]], why: str) -> None:
    told = search_machines(preset("gpt-7b-p5", words), instances=("p5.48xlarge",), nodes=(1, 2))
    assert {(row.nodes, row.market) for row in told.found} == left
    assert [reason[: len(why)] for reason in told.refused] == ([why] if why else [])
    assert not told.unfit


def test_only_the_markets_that_are_asked_for_are_searched() -> None:
    told = search_machines(preset("gpt-7b-p5"), nodes=(2,), markets=("on_demand",))
    assert {row.market for row in told.found} == {"on_demand"}


def test_machines_that_nobody_takes_away_are_saved_less_often() -> None:
    config = preset("gpt-175b-p4d", "cluster.backend=kubernetes")
    told = search_machines(config, instances=("p4d.24xlarge",), nodes=(32,))
    every = {row.market: row.trained["checkpoint.every_steps"] for row in told.found}
    best = planned("gpt-175b-p4d").saves
    assert best is not None
    assert every["capacity_block"] == every["on_demand"] == best.best_every_steps
    assert int(every["spot"] or 0) < int(every["on_demand"] or 0)


def test_a_configuration_of_this_host_is_searched_on_the_machines_that_are_asked_for() -> None:
    told = search_machines(preset("default"), instances=("g5.xlarge",), nodes=(2,))
    assert {row.instance_type for row in told.found} == {"g5.xlarge"}


def test_a_pipeline_is_searched_where_training_takes_one() -> None:
    """With the keys that it needs, one micro batch for each stage at least; GPT's embedding and head are one weight."""
    words = "model=llama-70b data.tokenizer.vocab_size=32000 train.global_batch=128"
    config = preset("llama-13b-p5", words)
    told = search_machines(config, instances=("p4d.24xlarge",), nodes=(64,))
    staged = [row for row in told.found if "parallel.pipeline" in row.trained]
    assert staged
    assert any("parallel.pipeline takes the time" in line for line in told.assumed)
    for row in staged:
        cluster = f"cluster.instance_type={row.instance_type} cluster.nodes={row.nodes}"
        own = preset("llama-13b-p5", f"{words} {cluster} {overrides_text(row.keys)}")
        check_ranks(own, world(own))
        assert step_time(workload_of(own)).total == pytest.approx(row.step_seconds)
    gpt = search_machines(preset("gpt-175b-p5"), nodes=(16,))
    assert not any("parallel.pipeline" in row.trained for row in gpt.found)


ROWS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12)


@given(ROWS, st.integers(1, 9), st.integers(1, 9))
@examples(60)
def test_nothing_within_the_limits_beats_what_is_marked(
    values: list[tuple[int, int]], max_usd: int, max_hours: int
) -> None:
    rows = mark_and_sort([row(usd, hours) for usd, hours in values], max_usd, max_hours)
    within = [(cost(each), each.hours) for each in rows if each.within]
    assert within == [(usd, hours) for usd, hours in sorted(within)] or len({usd for usd, _ in within}) < len(within)
    assert all(usd <= max_usd and hours <= max_hours for usd, hours in within)
    for each in rows:
        own = cost(each), each.hours
        beaten = any(usd <= own[0] and hours <= own[1] and (usd, hours) != own for usd, hours in within)
        assert each.pareto == (each.within and not beaten)


def test_an_old_price_comes_after_newer_ones_and_rules_nothing_out() -> None:
    told = search_machines(preset("gpt-7b-p4d"), instances=("p5.48xlarge",), nodes=(4,))
    dates = {row.market: (row.price_date, row.stale) for row in told.found}
    assert dates["capacity_block"] == (date(2024, 12, 31), True)
    assert not dates["on_demand"][1]
    usd = {row.market: row.usd or 0.0 for row in told.found}
    assert usd["capacity_block"] < usd["on_demand"]
    assert [row.market for row in told.found] == ["spot", "on_demand", "capacity_block"]
    assert [row.pareto for row in told.found] == [True, True, False]
    assert all(row.price_source for row in told.found)


def test_what_a_search_rests_on_is_said_once() -> None:
    told = search_machines(preset("gpt-7b-p4d"), instances=("p4d.24xlarge", "p6-b200.48xlarge"), nodes=(2, 4))
    assert len(set(told.assumed)) == len(told.assumed)
    assert sum("a B200 reaches as much of its peak as an H100 does" in line for line in told.assumed) == 1
    assert sum("of p4d.24xlarge on spot 5 to 10 %" in line for line in told.assumed) == 1
    assert told.no_spot == ("p6-b200.48xlarge",)
    assert {row.market for row in told.found if row.instance_type == "p6-b200.48xlarge"} == {
        "on_demand", "capacity_block",
    }  # fmt: skip
    assert told.calibration.startswith(str(shipped_calibration().date))


def cost(told: SearchRow) -> float:
    assert told.usd is not None
    return told.usd


def row(usd: float, hours: float) -> SearchRow:
    told: dict[str, Any] = {
        "instance_type": "p4d.24xlarge", "nodes": 1, "market": "spot", "keys": {}, "step_seconds": 1.0, "mfu": 0.5,
        "tokens_per_second": 1.0, "memory_share": 0.5, "least_usd": None, "most_usd": None, "usd_per_hour": 1.0,
        "price_date": date(2026, 11, 9), "price_source": "a list", "stale": False, "pareto": False, "within": True,
    }  # fmt: skip
    return SearchRow(**told, hours=hours, usd=usd)


def test_a_wrong_type_is_told() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.instance_type = p4x: not in the catalog"):
        search_machines(preset("gpt-7b-p4d"), instances=("p4x",))
