"""`convoy plan calibrate` on a benchmark's cases."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from convoy.benchmark.results.files import write_case
from convoy.cli.main import main
from convoy.planner.step.calibration import read_calibration, shipped, shipped_for
from tests.benchmark.results.cases import MEASURED, a_case
from tests.planner.own_cases import a_run


def convoy_plan(*words: str) -> Result:
    return CliRunner().invoke(main, ["plan", *words], env={"COLUMNS": "200"})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three trainings on this host, one of them in two suites, and a case of an earlier version."""
    folder = tmp_path / "results"
    runs = [a_run(shipped_for("cpu"), f"{layers} layers", {"n_layers": layers}) for layers in (2, 4, 8)]
    for case in [*runs, runs[0].model_copy(update={"suite": "sync"}), a_case("old")]:
        write_case(folder, case)
    return folder


def test_a_benchmark_is_fitted_and_what_came_of_it_is_told(results: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    done = convoy_plan("calibrate", str(results), str(own))
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == f"{own}: 4 cases of 3 trainings not configured alike, off by"
    assert [line.split(",")[-1].strip() for line in lines[1:4]] == [
        "as it was shipped", "which is no claim about others", "each training by a fit to the others",
    ]  # fmt: skip
    assert lines[4] == "left out, 1 case:"
    assert lines[5].endswith("an earlier version: throughput-a1-old")
    found = read_calibration(own)
    assert (found.machines, found.fitted and found.fitted.rows) == ((MEASURED,), 4)


def test_with_it_a_step_is_planned_on_a_machine_that_the_catalog_does_not_have(results: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    convoy_plan("calibrate", str(results), str(own))
    words = ("default", "--json", "--set", "train.param_dtype=fp32 cluster.nodes=2")
    with_it, without = (json.loads(convoy_plan(*words, *more).stdout) for more in (("--calibration", str(own)), ()))
    assert without["step"] is None
    assert with_it["step"]["seconds"] > 0
    assert MEASURED.device in with_it["calibration"]


def test_the_machine_is_that_of_as_many_ranks_as_this_host_has_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {"device": "RTX", "kind": "cuda", "dtype": "bf16"}
    two, four = (MEASURED.model_copy(update={**measured, "ranks": ranks}) for ranks in (2, 4))
    own = tmp_path / "own.json"
    own.write_text(shipped_for("cuda").model_copy(update={"machines": (two, four)}).model_dump_json())
    monkeypatch.setattr("convoy.launch.checks.host.local_gpus", lambda: 4)
    told = json.loads(convoy_plan("default", "--json", "--calibration", str(own)).stdout)
    assert told["measured"]["ranks"] == 4


def test_a_calibration_of_several_devices_is_refused_only_where_one_is_needed(tmp_path: Path) -> None:
    other = MEASURED.model_copy(update={"device": "Intel Xeon"})
    own = tmp_path / "own.json"
    own.write_text(shipped().model_copy(update={"machines": (MEASURED, other)}).model_dump_json())
    done = convoy_plan("default", "--calibration", str(own))
    assert done.exit_code == 2
    assert done.stderr == (
        f"convoy: --calibration {own}: it has machines of several devices: AMD EPYC 7R13, Intel Xeon\n"
    )
    assert convoy_plan("gpt-7b-p4d", "--calibration", str(own)).exit_code == 0


def test_a_calibration_without_the_planned_gpu_is_refused(results: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    convoy_plan("calibrate", str(results), str(own))
    done = convoy_plan("gpt-7b-p4d", "--calibration", str(own))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"convoy: --calibration {own}: A100: the calibration of ")
    assert f"it is of {MEASURED.device}" in done.stderr


def test_one_case_is_a_benchmark_too(results: Path, tmp_path: Path) -> None:
    one = next(path for path in results.glob("*layers*"))
    done = convoy_plan("calibrate", str(one), str(tmp_path / "own.json"))
    assert done.exit_code == 0
    assert "1 case of 1 training" in done.stdout
    assert "by a fit to the others" not in done.stdout


def test_a_benchmark_that_tells_nothing_is_refused(tmp_path: Path) -> None:
    write_case(tmp_path / "results", a_case("old"))
    done = convoy_plan("calibrate", str(tmp_path / "results"), str(tmp_path / "own.json"))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"convoy: {tmp_path / 'results'}: no case can be fitted to: 1 of 1: nothing was")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "own.json").exists()


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    done = convoy_plan("calibrate", str(tmp_path), str(tmp_path / "own.json"))
    assert (done.exit_code, done.stderr) == (2, f"convoy: {tmp_path}: no results (*.json)\n")
