"""The committed results of the strategies suite on 8 ranks: their configuration, and what they show."""

from pathlib import Path

import pytest

from convoy.benchmark.analysis.report import BenchReport
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.groups import Ranks
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.files import read_case
from tests.benchmark.benches import groups_of, ready

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def layouts() -> list[Case]:
    return [read_case(file) for file in sorted((ROOT / "benchmarks/results/layouts").glob("*.json"))]


@pytest.fixture(scope="module")
def report(layouts: list[Case]) -> BenchReport:
    return fold_cases(layouts)


def test_committed_layouts_are_those_of_their_configuration(layouts: list[Case]) -> None:
    planned = {
        (g.name, spec.name): spec.config(g.run) for g in groups_of(ready("layouts"), Ranks(8, 4)) for spec in g.variants
    }
    measured = {(case.group, case.name): case for case in layouts}
    assert planned.keys() == measured.keys()
    assert ("strategies-tiny-model-parallel", "fsdp 2 × tensor 2 × pipeline 2") in measured
    for key, config in planned.items():
        expected = config.model_dump(mode="json")
        assert {name: measured[key].config[name] for name in ("model", "parallel")} == {
            name: expected[name] for name in ("model", "parallel")
        }
        assert measured[key].hardware.ranks == 8


def test_committed_layouts_compute_the_same(report: BenchReport) -> None:
    compared = [case for _, case in report.cases if case.baseline is not None]
    assert len(compared) == 5
    assert [case.losses for case in compared] == ["agree"] * 5
    assert max(case.loss_difference or 0.0 for case in compared) < 1e-6


def test_the_guide_has_the_times_that_were_measured(report: BenchReport) -> None:
    guide = (ROOT / "docs/guides/benchmarks.md").read_text()
    rows = {
        line.split(" | ")[0][2:].partition(", the")[0]: line for line in guide.splitlines() if line.startswith("| ")
    }
    for _, case in report.cases:
        step = case.step_seconds
        assert step is not None
        milliseconds = [f"{1000 * value:.0f}" for value in (step.estimate, step.low, step.high)]
        assert "{} ms ({} to {})".format(*milliseconds) in rows[case.name]
