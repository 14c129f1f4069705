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
    formation,
    live_task,
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


def test_metaflow_tells_whether_all_nodes_are_on_this_host() -> None:
    assert on_one_host({})
    assert on_one_host({"METAFLOW_RUNTIME_ENVIRONMENT": "local"})
    assert not on_one_host({"METAFLOW_RUNTIME_ENVIRONMENT": "kubernetes"})
    assert not on_one_host({"METAFLOW_RUNTIME_ENVIRONMENT": "aws-batch"})


def test_a_node_is_who_metaflow_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAFLOW_RUNTIME_ENVIRONMENT", "kubernetes")
    gang = SimpleNamespace(main_ip="10.0.0.7", num_nodes=4, node_index=2, control_task_id="5")
    current = SimpleNamespace(parallel=gang, flow_name="F", run_id="9", step_name="train", retry_count=1)
    node = this_node(RunConfig(), current, 1, 2, gpus=0)
    assert (node.index, node.nodes, node.nproc_per_node, node.main_host) == (2, 4, 2, "10.0.0.7")
    assert (node.formation, node.attempt, node.shares_host) == ("9/train/5/1", 1, False)
    assert (formation(current, 1), live_task(current)) == (node.formation, "F/9/train/5")


def test_each_gang_of_a_step_has_a_formation_of_its_own() -> None:
    current = SimpleNamespace(parallel=SimpleNamespace(control_task_id="5"), run_id="9", step_name="s", retry_count=0)
    assert len({formation(current, call) for call in (1, 2, 3)}) == 3


def decorator(name: str, parallel: bool = False, **attributes: Any) -> Any:
    return SimpleNamespace(name=name, IS_PARALLEL=parallel, attributes=attributes)


GANG = decorator("convoy_gang", parallel=True, nproc_per_node=None)


@pytest.mark.parametrize("asked", [0, -1, 1.5, "two", True, [2]])
def test_what_is_no_number_of_workers_is_refused(asked: Any) -> None:
    with pytest.raises(ConfigError, match=r"nproc_per_node = .* of @convoy_gang: must be a whole number from 1 on"):
        check_step("train", asked, [GANG])


@pytest.mark.parametrize("asked", [None, 1, 8])
def test_any_number_from_one_on_will_do_where_nothing_limits_it(asked: int | None) -> None:
    check_step("train", asked, [GANG, decorator("parallel", parallel=True), decorator("retry", times=3)])


@pytest.mark.parametrize("name", ["batch", "kubernetes", "resources"])
@pytest.mark.parametrize("gpu", [4, "4"])
def test_more_workers_than_the_step_s_gpus_are_refused(name: str, gpu: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        check_step("train", 8, [GANG, decorator(name, gpu=gpu)])
    told = f"step train: nproc_per_node = 8 of @convoy_gang: @{name} asks for 4 GPUs, and each worker needs one"
    assert str(refused.value).startswith(told)
    check_step("train", 4, [GANG, decorator(name, gpu=gpu)])


@pytest.mark.parametrize("gpu", [None, 0, "0"])
def test_a_step_without_gpus_trains_on_the_cpu_with_any_number(gpu: Any) -> None:
    check_step("train", 8, [GANG, decorator("kubernetes", gpu=gpu)])


def test_the_larger_of_two_requests_counts() -> None:
    """As Metaflow merges them."""
    check_step("train", 8, [GANG, decorator("resources", gpu=8), decorator("batch", gpu=1)])


def test_another_decorator_that_starts_the_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match="@torchrun beside @convoy_gang"):
        check_step("train", None, [GANG, decorator("torchrun", parallel=True)])


def test_catch_is_refused_on_kubernetes_as_metaflow_does_beside_parallel() -> None:
    with pytest.raises(ConfigError, match="@catch beside @convoy_gang"):
        check_step("train", None, [GANG, decorator("catch"), decorator("kubernetes", gpu=None)])
    check_step("train", None, [GANG, decorator("catch")])


def test_the_command_ends_with_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        check_or_exit("train", 0, [GANG])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith("convoy: step train: nproc_per_node = 0")
