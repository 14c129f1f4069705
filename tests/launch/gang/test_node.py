"""How many workers a node has, which node of which gang a task is, and steps that are refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from convoy.config.errors import ConfigError
from convoy.config.loader import resolve
from convoy.config.run import RunConfig
from convoy.launch.gang.node import (
    check_or_exit,
    check_step,
    formation_name,
    live_card_task,
    on_one_host,
    this_node,
    workers_per_node,
)

ON_P4D = {"backend": "kubernetes", "nodes": 4, "instance_type": "p4d.24xlarge"}


def config(**cluster: Any) -> RunConfig:
    return resolve({}, {"cluster": cluster})


@pytest.mark.parametrize(
    ("asked", "cluster", "nodes", "gpus", "shared", "workers"),
    [
        (None, {}, 3, 0, True, 1),
        (None, {}, 2, 8, True, 4),
        (None, {}, 2, 8, False, 8),
        (None, {}, 16, 8, True, None),
        (2, {}, 3, 0, True, 2),
        (2, {}, 3, 6, True, 2),
        (None, {"nproc_per_node": 3}, 2, 0, False, 3),
        (3, {"nproc_per_node": 3}, 2, 3, False, 3),
        (None, ON_P4D, 4, 8, False, 8),
        (2, ON_P4D, 4, 8, False, 2),
    ],
)
def test_a_node_has_as_many_workers_as_asked_for_or_as_it_has_gpus(
    asked: int | None, cluster: dict[str, Any], nodes: int, gpus: int, shared: bool, workers: int | None
) -> None:
    if workers is None:
        with pytest.raises(ConfigError, match="the host of all 16 nodes has 8 GPUs"):
            workers_per_node(asked, config(**cluster), nodes, gpus, shared=shared)
    else:
        assert workers_per_node(asked, config(**cluster), nodes, gpus, shared=shared) == workers


@pytest.mark.parametrize(
    ("asked", "cluster", "gpus", "shared", "told"),
    [
        (4, {}, 2, False, "nproc_per_node = 4: this machine has 2 GPUs, and each worker needs one of its own"),
        (2, {}, 1, False, "nproc_per_node = 2: this machine has 1 GPU, and"),
        (2, {}, 3, True, "nproc_per_node = 2: the host of all 2 nodes has 3 GPUs"),
        (4, {"nproc_per_node": 2}, 0, True, "nproc_per_node = 4 of @convoy_gang: cluster.nproc_per_node is 2"),
        (None, ON_P4D, 4, False, "nproc_per_node = 8: this machine has 4 GPUs"),
    ],
)
def test_workers_that_do_not_fit_are_refused_in_one_line(
    asked: int | None, cluster: dict[str, Any], gpus: int, shared: bool, told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        workers_per_node(asked, config(**cluster), 2, gpus, shared=shared)
    assert str(refused.value).startswith(told)
    assert "\n" not in str(refused.value)


def test_a_node_is_who_metaflow_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAFLOW_RUNTIME_ENVIRONMENT", "kubernetes")
    gang = SimpleNamespace(main_ip="10.0.0.7", num_nodes=4, node_index=2, control_task_id="5")
    current = SimpleNamespace(parallel=gang, flow_name="F", run_id="9", step_name="train", retry_count=1)
    node = this_node(RunConfig(), current, 1, 2, gpus=0)
    assert (node.index, node.nodes, node.nproc_per_node, node.main_host) == (2, 4, 2, "10.0.0.7")
    assert (node.formation, node.attempt, node.shares_host) == ("9/train/5/1", 1, False)
    assert len({formation_name(current, call) for call in (1, 2, 3)}) == 3  # one for each gang of a step
    assert [on_one_host(env) for env in ({}, {"METAFLOW_RUNTIME_ENVIRONMENT": "local"})] == [True, True]
    assert (formation_name(current, 1), live_card_task(current)) == (node.formation, "F/9/train/5")


def decorator(name: str, parallel: bool = False, **attributes: Any) -> Any:
    return SimpleNamespace(name=name, IS_PARALLEL=parallel, attributes=attributes)


GANG = decorator("convoy_gang", parallel=True, nproc_per_node=None)


@pytest.mark.parametrize(
    ("asked", "others"),
    [
        (None, [decorator("parallel", parallel=True), decorator("retry", times=3), decorator("catch")]),
        (8, []),
        (8, [decorator("kubernetes", gpu=None)]),  # on the CPU
        (8, [decorator("kubernetes", gpu="0")]),
        (8, [decorator("resources", gpu=8), decorator("batch", gpu=1)]),  # the larger one, as Metaflow merges them
        (4, [decorator("batch", gpu="4")]),
    ],
)
def test_a_step_that_can_work_is_let_through(asked: int | None, others: list[Any]) -> None:
    check_step("train", asked, [GANG, *others])


NO_NUMBER = "nproc_per_node = .* of @convoy_gang: must be a whole number from 1 on"


@pytest.mark.parametrize(
    ("asked", "others", "reason"),
    [
        *((asked, [], NO_NUMBER) for asked in (0, 1.5, "two", True)),
        (None, [decorator("torchrun", parallel=True)], "@torchrun next to @convoy_gang"),
        (None, [decorator("catch"), decorator("kubernetes", gpu=None)], "@catch next to @convoy_gang"),
    ],
)
def test_a_step_that_cannot_work_is_refused(asked: Any, others: list[Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_step("train", asked, [GANG, *others])


@pytest.mark.parametrize("name", ["batch", "kubernetes", "resources"])
def test_more_workers_than_the_step_s_gpus_are_refused(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_step("train", 8, [GANG, decorator(name, gpu="4")])
    told = f"step train: nproc_per_node = 8 of @convoy_gang: @{name} asks for 4 GPUs, and each worker needs one"
    assert str(refused.value).startswith(told)


def test_the_command_ends_with_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        check_or_exit("train", 0, [GANG])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith("convoy: step train: nproc_per_node = 0")
