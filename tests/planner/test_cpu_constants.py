"""The planner's constants of CPUs are those that steps on one give."""

import json
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from convoy.benchmark.planner_runs import workload_of
from convoy.config.run import RunConfig
from convoy.planner.step.calibration import Calibration, shipped_calibration
from convoy.planner.step.step_time import step_time
from convoy.planner.validation.fit import percent_errors
from convoy.planner.validation.validate import median_abs, p90_abs
from tests.benchmark.cases import MEASURED
from tests.planner.own_cases import SMALL
from tests.tools import tool as script

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return script("cpu_constants")


def truth(tool: ModuleType) -> Calibration:
    """Of a CPU that nobody has, whatever is shipped."""
    known = tool.cpu_prior()
    changed = {"matmul_efficiency": {"cpu": 0.9}, "operations": 7.0, "sharding_traffic": 6.0, "logit_bytes": 100.0}
    return Calibration(date=known.date, data="a test", constants=known.constants.model_copy(update=changed))


def written(path: Path, truth: Calibration, noise: float) -> Path:
    """What a machine with exactly these constants would show, but for noise of so large a share."""
    drawn, rows = np.random.default_rng(0), []
    for layers, length, sequences, ranks in product((2, 4), (64, 256), (1, 2, 4), (1, 2)):
        tree: dict[str, Any] = {
            "model": SMALL | {"n_layers": layers, "max_sequence_length": length},
            "data": {"sequence_length": length},
            "train": {"global_batch": ranks * sequences, "micro_batch": sequences, "param_dtype": "fp32"},
        }
        machine = MEASURED.model_copy(update={"ranks": ranks})
        job = workload_of(RunConfig.model_validate(tree), 1, ranks, machine, on_gpus=False)
        seconds = step_time(job, truth).total * (1 + noise * drawn.standard_normal())
        name = f"{layers} {length} {sequences}"
        rows.append({"name": name, "ranks": ranks, "config": tree, "machine": machine.model_dump(), "seconds": seconds})
    told = {"date": "2026-11-23T12:00:00Z", "hardware": {"cpu": "AMD EPYC", "cores": 2}, "versions": {"torch": "2.13"}}
    path.write_text(json.dumps({**told, "rows": rows}))
    return path


def test_what_steps_took_is_found_again(tool: ModuleType, tmp_path: Path) -> None:
    found = tool.fitted(tool.read(written(tmp_path / "rows.json", truth(tool), noise=0.0)))
    assert found.constants.matmul_efficiency["cpu"] == pytest.approx(0.9, rel=0.1)
    assert found.constants.operations == pytest.approx(7, rel=0.2)  # 4 are expected
    assert found.constants.sharding_traffic == pytest.approx(6, rel=0.1)
    assert found.data.startswith(
        "24 runs of Convoy's own steps of one rank beside another and of two together on 2 cores"
    )


def test_a_clock_s_errors_are_no_larger_in_what_is_predicted(tool: ModuleType, tmp_path: Path) -> None:
    rows = tool.read(written(tmp_path / "rows.json", truth(tool), noise=0.02))
    assert median_abs(percent_errors(rows, tool.fitted(rows))) < 2
    assert median_abs(tool.others(rows)) < 3


def test_constants_that_no_step_tells_of_stay(tool: ModuleType, tmp_path: Path) -> None:
    found = tool.fitted(tool.read(written(tmp_path / "rows.json", truth(tool), noise=0.02))).constants
    assert (found.straggling, found.contention, found.inside_efficiency) == (1e-6, 1e-3, 1.0)


def test_a_configuration_is_left_out_with_one_rank_and_with_two(tool: ModuleType, tmp_path: Path) -> None:
    """Who sees the one in the fit knows the other."""
    rows = tool.read(written(tmp_path / "rows.json", truth(tool), noise=0.0))
    assert [row.name for row in rows[:2]] == ["2 64 1, ranks: 1", "2 64 1, ranks: 2"]
    table = tool.table(rows[:4], tool.fitted(rows[:4]))
    assert table.splitlines()[2].startswith("| 2 64 1, ranks: 1 |")
    assert len(tool.others(rows[:2])) == 0  # nothing is left to fit to


@pytest.fixture(scope="module")
def steps(tool: ModuleType) -> Any:
    """That were measured."""
    return tool.read(tool.ROWS)


def test_the_shipped_constants_are_near_the_steps_that_they_are_of(steps: Any) -> None:
    assert len(steps) >= 28
    wrong = percent_errors(steps, shipped_calibration("cpu"))
    assert median_abs(wrong) <= 8
    assert p90_abs(wrong) <= 20


def test_steps_that_nothing_is_fitted_to_are_predicted_as_well(tool: ModuleType) -> None:
    """The same ones, measured once more."""
    wrong = percent_errors(tool.read(tool.ROWS.with_name("cpu_steps_again.json")), shipped_calibration("cpu"))
    assert len(wrong) >= 28
    assert median_abs(wrong) <= 8
    assert p90_abs(wrong) <= 20


def test_steps_that_were_left_out_are_predicted_nearly_as_well(tool: ModuleType, steps: Any) -> None:
    wrong = tool.others(steps)
    assert median_abs(wrong) <= 10
    assert p90_abs(wrong) <= 25


def test_constants_and_what_is_said_of_them_are_up_to_date(tool: ModuleType, steps: Any) -> None:
    shipped = shipped_calibration("cpu")
    assert tool.near(tool.fitted(steps), shipped)
    assert shipped.fitted is not None
    assert shipped.fitted.rows == len(steps)
    document = tool.DOCUMENT.read_text()
    assert "<!-- cpu: written by tools/cpu_constants.py, not by hand -->" in document
    assert tool.rewritten(document, tool.section(steps, shipped)) == document


def test_the_committed_steps_are_of_an_idle_machine(tool: ModuleType) -> None:
    """What else was at work would be in the constants."""
    told = json.loads(tool.ROWS.read_text())
    assert told["others_cores"] < 0.2
