"""Gangs in several environments: their order, what each is given, and what their cases become."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from convoy.benchmark.groups import Group, Ranks
from convoy.benchmark.results.case import Block, Case
from convoy.benchmark.results.collectives import timing_values
from convoy.benchmark.results.figures import NotComparableError, speedup
from convoy.benchmark.results.files import write_case
from convoy.benchmark.suites.environments import Turn, captured_variables, merged_cases, set_variables, turns
from convoy.config.benchmark import BenchConfig, EnvironmentConfig
from convoy.gang.task import Script
from convoy.launch.benchmark.groups import run_groups
from convoy.launch.benchmark.split import Share, describe_share
from convoy.launch.gang.step import GangFailedError
from convoy.report.train_report import NetworkUse
from tests.benchmark.benches import groups_of
from tests.benchmark.cases import PROVENANCE, a_case, replaced
from tests.benchmark.results.test_collectives import a_collective

CONFIG = BenchConfig.model_validate(
    {
        "suites": ["sync"],
        "sync": {"environments": [{"name": "TCP", "set": {"NCCL_IB_DISABLE": "1"}}, {"name": "EFA"}], "claims": "rdma"},
    }
)


def a_group() -> Group:
    overhead, network = groups_of(CONFIG, Ranks(2, 1))
    assert [spec.name for spec in overhead.variants] == ["without synchronisation", "with synchronisation"]
    return network


def gang_case(turn: Turn, seconds: float, **changed: Any) -> Case:
    """Of one gang, which ran later than those before it; its blocks spread around `seconds`."""
    blocks = tuple(Block(number=i, steps=2, seconds=seconds * x, cpu_seconds=1) for i, x in enumerate((0.9, 1, 1.3)))
    environment = turn.group.environment
    provenance = replaced(
        PROVENANCE,
        measured=PROVENANCE.measured + timedelta(minutes=int(turn.group.name.rpartition("-")[2])),
        environment={name: value for name, value in environment.set.items() if value is not None},
    )
    facts: dict[str, Any] = {"suite": "sync", "group": turn.group.name, "name": turn.case, "baseline": None}
    return a_case(**(facts | {"provenance": provenance, "blocks": blocks} | changed))


def test_gangs_take_turns_in_an_order_that_turns_round() -> None:
    found = list(turns(a_group()))
    assert "".join(turn.case[0] for turn in found) == "TEETTEETTEET"
    assert [turn.pair for turn in found] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert len({turn.group.name for turn in found}) == 12
    assert {turn.case: turn.group.environment and turn.group.environment.set for turn in found} == {
        "TCP": {"NCCL_IB_DISABLE": "1"}, "EFA": {},
    }  # fmt: skip
    assert all(turn.group.compared is None and len(turn.group.variants) == 1 for turn in found)


def test_what_is_claimed_is_of_all_but_the_first() -> None:
    assert [(spec.name, spec.values) for spec in a_group().case_specs] == [("TCP", {}), ("EFA", {"rdma_claimed": 1.0})]


def test_a_gang_is_one_block_and_gangs_of_one_turn_are_a_pair() -> None:
    group = a_group()
    gangs = [(turn, gang_case(turn, (1 if turn.case == "EFA" else 2) + 0.01 * turn.pair)) for turn in turns(group)]
    tcp, efa = merged_cases(group, list(reversed(gangs)))
    assert (tcp.name, tcp.baseline, efa.name, efa.baseline) == ("TCP", None, "EFA", "TCP")
    assert [block.number for block in efa.blocks] == list(range(6))
    assert [block.seconds for block in efa.blocks] == pytest.approx([1.0, 1.01, 1.02, 1.03, 1.04, 1.05])
    assert {block.steps for block in efa.blocks} == {6}
    assert tcp.varied == efa.varied == ("NCCL_IB_DISABLE",)
    found = speedup(efa, tcp)
    assert found.n == 6
    assert found.estimate == pytest.approx(2.025 / 1.025, rel=1e-4)


def test_what_each_gang_measured_of_itself_is_a_sample_of_its_case() -> None:
    """Blocks of a gang take 0.9, 1 and 1.3 of `seconds`; a collective was in progress in 30 % of traced steps."""
    group = a_group()
    timing = a_collective("all_reduce", 2**20, 2, 0.01)
    of_gang = {
        **timing_values(timing), "share_communication": 0.2, "communication_hidden": 0.1, "share_idle": 0.1,
        "start_up_seconds": 3.0, "first_step_seconds": 1.0,
    }  # fmt: skip
    gangs = [(turn, gang_case(turn, 1 + turn.pair, values=of_gang)) for turn in turns(group)]
    tcp, efa = merged_cases(group, list(reversed(gangs)))
    assert efa.samples["sync_seconds"] == pytest.approx((0.3, 0.6, 0.9, 1.2, 1.5, 1.8))
    assert efa.samples["start_up_seconds"] == (3.0,) * 6
    assert efa.samples["collective.all_reduce.1048576"] == (0.01,) * 6
    assert efa.values == {"first_step_seconds": 1.0}  # the others are of one gang
    lacking = [
        (turn, replaced(case, values={}, not_measured={"shares of the step": "no trace"}) if turn.pair == 2 else case)
        for turn, case in gangs
    ]
    tcp, efa = merged_cases(group, lacking)
    assert tcp.samples == efa.samples == {}
    assert efa.not_measured == {"shares of the step": "no trace"}


def test_a_case_names_every_network_that_its_gangs_used() -> None:
    """One of several gangs may have fallen back."""
    group = a_group()
    uses = [
        NetworkUse(name=name, verdict="", ranks=2, world_size=2, counters="absent", cause=None, fix=None)
        for name in ("EFA", "TCP")
    ]
    gangs = [(turn, gang_case(turn, 1.0, carried_by=(uses[turn.pair == 2],))) for turn in turns(group)]
    assert [case.carried_by for case in merged_cases(group, gangs)] == [tuple(uses)] * 2


def test_what_was_not_to_differ_is_refused() -> None:
    group = a_group()
    gangs = [(turn, gang_case(turn, 1.0)) for turn in turns(group)]
    tcp, efa = merged_cases(group, gangs)
    environment = {**efa.provenance.environment, "NCCL_ALGO": "Ring"}
    other = replaced(efa, provenance=replaced(efa.provenance, environment=environment))
    with pytest.raises(NotComparableError, match=r"environment\.NCCL_ALGO: Ring and None, which was not to differ"):
        speedup(other, tcp)
    silent = replaced(efa, varied=())  # one side alone cannot declare it
    with pytest.raises(NotComparableError, match="NCCL_IB_DISABLE"):
        speedup(silent, tcp)


def test_an_environment_that_fails_ends_its_group_with_its_name(tmp_path: Path) -> None:
    started: list[str] = []

    def run_gang(group: Group, script: Script) -> None:
        started.append(group.name)
        given = Group.model_validate_json(Path(script.args[0]).read_text())
        if given.environment.name == "EFA":
            raise GangFailedError("rank 1: no such provider")
        write_case(Path(script.args[1]), gang_case(Turn(0, "TCP", given), 1.0))

    (ran,) = run_groups([a_group()], run_gang, lambda _: None)
    assert ran.failure == "EFA: rank 1: no such provider"
    assert started == ["network-tiny-1", "network-tiny-2"]
    assert [(case.name, case.status, case.group) for case in ran.cases] == [
        ("TCP", "failed", "network-tiny"),
        ("EFA", "failed", "network-tiny"),
    ]


def test_of_three_environments_one_may_fail_and_is_not_tried_again(tmp_path: Path) -> None:
    started: list[str] = []

    def run_gang(group: Group, script: Script) -> None:
        given = Group.model_validate_json(Path(script.args[0]).read_text())
        assert given.environment is not None
        started.append(given.environment.name)
        if given.environment.name == "EFA":
            raise GangFailedError("rank 1: no such provider")
        write_case(Path(script.args[1]), gang_case(Turn(0, given.environment.name, given), 1.0))

    compared = {"environments": [*CONFIG.sync.environments, {"name": "TCP 4", "set": {"NCCL_SOCKET_NTHREADS": "4"}}]}
    config = BenchConfig.model_validate({"suites": ["sync"], "sync": compared})
    (ran,) = run_groups(groups_of(config, Ranks(2, 1))[1:], run_gang, lambda _: None)
    assert ran.failure == ""
    assert {name: started.count(name) for name in started} == {"TCP": 6, "EFA": 1, "TCP 4": 6}
    assert {case.name: (case.status, len(case.blocks), case.reason) for case in ran.cases} == {
        "TCP": ("measured", 6, ""), "TCP 4": ("measured", 6, ""), "EFA": ("failed", 0, "rank 1: no such provider"),
    }  # fmt: skip


def test_on_other_nodes_gangs_run_alike_and_there_are_no_cases() -> None:
    started: list[str] = []
    (ran,) = run_groups([a_group()], lambda group, _: started.append(group.name), lambda _: None)
    assert len(started) == 12
    assert (ran.cases, ran.failure) == ((), "")


def test_a_dry_run_tells_how_many_gangs_there_would_be() -> None:
    (line,) = describe_share(Share(nodes=1, groups=(a_group(),)))
    assert line.startswith("network-tiny: ")
    assert line.endswith("ranks, 6 gangs of each: TCP; EFA")


def test_variables_are_set_or_taken_away_and_captured() -> None:
    environment = EnvironmentConfig(name="x", set={"FI_EFA_X": "0", "NCCL_NET": None})
    variables = {"NCCL_NET": "Socket", "AWS_SECRET": "s", "NCCL_ALGO": "Ring"}
    set_variables(None, variables)
    assert variables["NCCL_NET"] == "Socket"
    set_variables(environment, variables)
    assert variables == {"AWS_SECRET": "s", "NCCL_ALGO": "Ring", "FI_EFA_X": "0"}
    assert captured_variables(("NCCL_ALGO", "NCCL_NET"), environment, variables) == {
        "NCCL_ALGO": "Ring",
        "FI_EFA_X": "0",
    }
