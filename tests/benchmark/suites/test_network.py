"""The gangs of the network suite, and how those that take turns become the cases of one group."""

import pytest

from convoy.benchmark.analysis.network import network_report
from convoy.benchmark.groups import Group, Ranks
from convoy.benchmark.pages.network import network_page
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.network import figure_name, seconds_name
from convoy.benchmark.suites.environments import Turn, merged_cases, turns
from convoy.config.benchmark import BenchConfig
from convoy.display.page import Heading
from tests.benchmark.benches import groups_of
from tests.benchmark.network_cases import SIZES, network_case

SETTINGS = ["Ring/LL", "Tree/Simple"]


def planned(ranks: Ranks, **network: object) -> list[Group]:
    config = {"suites": ["network"], "network": {"nccl_settings": SETTINGS, **network}}
    return groups_of(BenchConfig.model_validate(config), ranks)


ON_GPUS = Ranks(16, 8, memory_bytes=80 * 2**30, host_bytes=100 * 2**30)


def test_a_gang_measures_one_collective_or_one_kind_of_link() -> None:
    names = [group.name for group in planned(Ranks(4, 1), operations=["reduce", "gather"], links=["pairs", "copies"])]
    assert names == ["network-reduce", "network-gather", "network-pairs", "network-copies"]


def test_settings_of_nccl_are_environments_of_gangs_that_take_turns() -> None:
    *_, group = planned(ON_GPUS)
    assert group.name == "network-nccl"
    assert group.network is not None
    assert (group.network.operations, group.network.links) == (("all_reduce",), ())
    first = {turn.case: turn.group.environment and turn.group.environment.set for turn in turns(group)}
    assert first == {
        "NCCL's choice": {"NCCL_ALGO": None, "NCCL_PROTO": None},
        "Ring/LL": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
        "Tree/Simple": {"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"},
    }


@pytest.mark.parametrize("measured", [{}, {"operations": [], "links": ["pairs"]}])
def test_without_gpus_settings_of_nccl_are_named_as_not_measured(measured: dict[str, object]) -> None:
    groups = planned(Ranks(4, 1), **measured)
    assert "network-nccl" not in [group.name for group in groups]
    missing = {what: why for group in groups for spec in group.variants for what, why in spec.not_measured.items()}
    assert missing == {"NCCL, Ring/LL": "there is no GPU", "NCCL, Tree/Simple": "there is no GPU"}


def test_each_gang_of_a_setting_is_a_block_and_is_compared_with_nccl_s_choice() -> None:
    *_, group = planned(ON_GPUS)
    speed = {"NCCL's choice": 1.0, "Ring/LL": 2.0, "Tree/Simple": 0.5}

    def of_gang(turn: Turn) -> tuple[Turn, Case]:
        line = (1e-3 / speed[turn.case], 4e7 * speed[turn.case])
        wrong = {figure_name("wrong", SIZES[0]): float(turn.pair == 2)}
        return turn, network_case(turn.case, line=line, group=turn.group.name, baseline=None, figures=wrong)

    merged = merged_cases(group, [of_gang(turn) for turn in turns(group)])
    assert [(case.group, case.baseline) for case in merged] == [
        ("network-nccl", None), ("network-nccl", "NCCL's choice"), ("network-nccl", "NCCL's choice"),
    ]  # fmt: skip
    assert [len(case.samples[seconds_name(SIZES[0])]) for case in merged] == [6, 6, 6]
    report = network_report(merged)
    assert report is not None
    (found,) = report.collectives
    assert found.varied == ("NCCL_ALGO", "NCCL_PROTO")
    ratios = {case.name: case.sizes[-1].time_ratio for case in found.algorithms}
    assert {name: ratio and round(ratio.estimate, 2) for name, ratio in ratios.items()} == {
        "NCCL's choice": None, "Ring/LL": 0.5, "Tree/Simple": 2.0,
    }  # fmt: skip
    assert {case.sizes[0].wrong for case in found.algorithms} == {1}
    headings = [block.text for block in network_page(report).blocks if isinstance(block, Heading)]
    assert headings == ["Network: all_reduce by NCCL_ALGO and NCCL_PROTO"]
