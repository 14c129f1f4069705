"""A model without room on this host: what the plain command says of it, and the cases that the report has."""

import shlex

import pytest

from convoy.benchmark.plan import run_of
from convoy.config.benchmark import BenchConfig, read_bench, resolve_bench
from convoy.config.loader import configs_folder, read_overrides
from convoy.launch.benchmark import split, without_room
from convoy.planner.pages.plan import plan_in_one_line
from convoy.planner.plan import plan

SMALL_HOST_MIB = 16 * 1024


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> BenchConfig:
    """gpt-7b and gpt2-124m on four nodes of a host of 16 GiB."""
    monkeypatch.setattr(split, "host_memory_mib", lambda: SMALL_HOST_MIB)
    monkeypatch.setattr(split, "local_gpus", lambda: 0)
    run = {"cluster": {"nodes": 4}, "train": {"global_batch": 64}, "data": {"sequence_length": 1024}}
    return resolve_bench({"suites": ["throughput"], "models": ["gpt-7b", "gpt2-124m"], "run": run}, {})


def test_what_has_room_is_left_and_the_other_says_what_it_needs(config: BenchConfig) -> None:
    here, lacking = without_room.split_by_room(config)
    assert here is not None
    assert here.models == ("gpt2-124m",)
    assert list(lacking) == ["gpt-7b"]
    assert "needs at least" in lacking["gpt-7b"]
    assert "4.0 GiB" in lacking["gpt-7b"]
    assert without_room.split_by_room(config.model_copy(update={"models": ("gpt-7b",)})).here is None


def test_it_is_planned_on_clusters_with_the_command_for_each(config: BenchConfig) -> None:
    lines = list(without_room.cluster_lines(config, "gpt-7b"))
    assert [line.split(":")[0] for line in lines if line.startswith("on ")] == [
        "on 4 × p4d.24xlarge (predicted)", "on 4 × p5.48xlarge (predicted)",
    ]  # fmt: skip
    assert "tok/s" in lines[0]
    for name in ("p4d", "p5"):
        assert any(f"configs/bench/{name}.yaml" in line for line in lines)
    assert all("run.train.global_batch=64 run.data.sequence_length=1024" in line for line in lines if "models=" in line)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "run.train.micro_batch=1 run.train.compile=false",
        "run.cluster.nproc_per_node=2 run.optimizer='{fused: false}'",
    ],
)
def test_what_is_predicted_is_what_the_command_trains(config: BenchConfig, words: str) -> None:
    lines = list(without_room.cluster_lines(config, "gpt-7b", words))
    for name, (prediction, first, second) in (("p4d", lines[:3]), ("p5", lines[3:])):
        command = shlex.split(first.removesuffix("\\") + second)
        base = read_bench((configs_folder() / "bench" / f"{name}.yaml").read_text())
        settings = command[command.index("set") + 1]
        run = run_of(resolve_bench(base, read_overrides(settings)), "gpt-7b")
        expected = plan_in_one_line(plan(run).model_copy(update={"budget": None, "saves": None}))
        assert prediction.partition("(predicted): ")[2] == expected
        assert {word for word in shlex.split(words) if "cluster" not in word} <= set(shlex.split(settings))
        assert "nproc_per_node" not in settings, "these are the ranks of this host"


def test_its_cases_are_refused_with_the_reason(config: BenchConfig) -> None:
    cases = without_room.refused_cases(config, "gpt-7b", "no room")
    assert {"ours", "baseline"} <= {case.name for case in cases}
    assert {(case.model, case.status, case.reason) for case in cases} == {("gpt-7b", "refused", "no room")}


def test_a_host_with_one_gpu_plans_for_the_one_rank_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default gang of two has one rank there: two cannot share a GPU."""
    monkeypatch.setattr(split, "local_gpus", lambda: 1)
    config = resolve_bench({"suites": ["throughput", "scaling"], "models": ["gpt-7b"]}, {})
    assert next(without_room.cluster_lines(config, "gpt-7b")).startswith("on 1 × p4d.24xlarge (predicted): ")
    cases = without_room.refused_cases(config, "gpt-7b", "no room")
    assert {(case.suite, case.hardware.nodes) for case in cases} == {("throughput", 1)}
