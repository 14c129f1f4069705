"""A step with @convoy_gang that cannot work is refused before anything starts."""

from types import SimpleNamespace
from typing import Any

import pytest

from convoy.config.errors import ConfigError
from convoy.launch.gang.node import check_or_exit, check_step


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
