"""Which cases each framework has, and what is refused before a gang starts."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from convoy.benchmark.fold import fold_cases
from convoy.benchmark.groups import Group, Ranks
from convoy.benchmark.page import page_of
from convoy.benchmark.results.values import COMPILE_SECONDS, INDEPENDENT
from convoy.benchmark.suites.frameworks import why_refused
from convoy.config.benchmark import BenchConfig
from convoy.display.markdown import to_markdown
from convoy.launch.benchmark.groups import run_groups
from tests.benchmark.analysis.test_frameworks import four
from tests.benchmark.benches import groups_of, ready
from tests.training.job import GPT, LLAMA, tiny

TWO = Ranks(2, 2)


def groups(**run: Any) -> dict[str, Group]:
    return {group.name: group for group in groups_of(BenchConfig(suites=("frameworks",), run=run), TWO)}


def test_each_framework_has_a_gang_in_which_it_takes_turns_with_convoy() -> None:
    gangs = groups(train={"param_dtype": "bf16", "global_batch": 8, "micro_batch": 1})
    assert list(gangs) == ["jax-tiny", "mlx-tiny", "horovod-tiny"]
    gang = gangs["jax-tiny"]
    baselines = {spec.name: gang.baseline_of(spec) for spec in gang.variants}
    assert baselines == {"Convoy": None, "Convoy, alone": "Convoy", "JAX": "Convoy", "JAX, alone": "Convoy, alone"}
    for spec in gang.variants:
        config = spec.config(gang.run)
        assert (config.train.param_dtype, config.train.micro_batch, config.parallel.strategy) == ("fp32", 4, "ddp")
        assert config.train.global_batch == (4 if spec.at_once else 8)
        assert bool(spec.values.get(INDEPENDENT)) is spec.at_once


def test_the_preset_measures_this_suite_alone() -> None:
    assert [group.suite for group in groups_of(ready("frameworks"), TWO)] == ["frameworks"] * 3


@pytest.mark.parametrize(
    ("gang", "reason"),
    [
        ("jax-tiny", "jax is not installed: pip install 'metaflow-convoy[jax]'"),
        ("mlx-tiny", "mlx is not installed: pip install 'metaflow-convoy[mlx]'"),
        ("horovod-tiny", "horovod is not installed, and pip cannot: on 2026-11-28, 0.28.1 did not build against torch"),
    ],
)
def test_without_its_package_no_gang_starts_and_every_case_has_the_reason(
    gang: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.benchmark.suites.peers.find_spec", lambda _: None)
    started: list[str] = []
    (ran,) = run_groups([groups()[gang]], lambda group, _: started.append(group.name), lambda _: None)
    assert started == []
    assert ran.failure == ""
    assert [case.status for case in ran.cases] == ["refused"] * 4
    assert all(case.reason.startswith(reason) for case in ran.cases)


def test_a_model_that_they_do_not_have_is_refused_where_their_packages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convoy.benchmark.suites.peers.find_spec", lambda _: object())
    (ran,) = run_groups([groups(model={"norm": "rmsnorm"})["mlx-tiny"]], lambda *_: pytest.fail("started"), print)
    assert {case.reason for case in ran.cases} == {
        "model.norm = rmsnorm: must be layernorm, as the frameworks' decoders have it"
    }


@pytest.mark.parametrize(
    ("changes", "ranks", "reason"),
    [
        ({}, TWO, ""),
        ({}, Ranks(2, 2, 80 * 10**9, 100 * 10**9), "the frameworks suite measures CPUs only"),
        (
            {"model": GPT | {"n_kv_heads": 1}},
            TWO,
            "model.n_kv_heads = 1: must be 3, as the frameworks' decoders have it",
        ),
        ({"model": LLAMA}, TWO, "model.norm = rmsnorm: must be layernorm, as the frameworks' decoders have it"),
        ({"train": {"global_batch": 5}}, TWO, "run.train.global_batch = 5: must be a multiple of the ranks, 2"),
        (
            {"data": {"respect_documents": True}},
            TWO,
            "run.data.respect_documents = true: must be false, since the frameworks' attention has no documents",
        ),
    ],
)
def test_what_no_framework_trains_is_named(changes: dict[str, Any], ranks: Ranks, reason: str) -> None:
    if changes.get("data"):
        config = tiny()
        config = config.model_copy(update={"data": config.data.model_copy(update=changes["data"])})
    else:
        config = tiny(**{"model": GPT, **changes})
    assert why_refused(config, ranks) == reason


def test_nothing_of_a_framework_is_imported_before_it_is_chosen(tmp_path: Path) -> None:
    for name in ("jax", "flax", "optax", "mlx", "horovod"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError(f'{__name__} was imported')\n")
    modules = "convoy.benchmark.worker, convoy.benchmark.suites.registry, convoy.launch.benchmark.groups"
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_has_a_profile_of_each_case_with_the_time_of_compilation() -> None:
    text = to_markdown(page_of(fold_cases(four())))
    (row,) = [line for line in text.splitlines() if line.startswith("| JAX |") and " s |" in line]
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[3:7] == ["100 ms", "200 ms", "150 ms", "10.0 ms"]
    assert "12.0 s" in cells
    assert "1.0e-06" in cells
    assert four()[2].values[COMPILE_SECONDS] == 12.0
