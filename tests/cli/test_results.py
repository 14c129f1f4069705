"""`convoy compare`, `convoy audit` and `convoy plan calibrate` on what is on disk."""

import json
from pathlib import Path

import pytest

from convoy.benchmark.results.case import Case
from convoy.benchmark.results.files import write_case
from convoy.config.network import Operation
from convoy.planner.step.calibration import read_calibration, shipped_calibration
from tests.benchmark.cases import HARDWARE, MEASURED, a_case
from tests.benchmark.network_cases import network_case
from tests.cli import assert_refused, convoy
from tests.planner.own_cases import a_run


def _folder(path: Path, *cases: Case) -> Path:
    for case in cases:
        write_case(path, case)
    return path


def test_two_files_are_compared(tmp_path: Path) -> None:
    first = write_case(tmp_path / "a", a_case(seconds=0.5, seed=1))
    second = write_case(tmp_path / "b", a_case(seconds=0.6, seed=2))
    done = convoy("compare", first, second)
    assert done.exit_code == 0
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("throughput-a1-ours")]
    assert "4.1" in row
    assert "0.83" in row
    assert row.rstrip().endswith("SLOWER in this run")
    (case,) = json.loads(convoy("compare", first, first, "--json").stdout)["cases"]
    assert case["case"] == "throughput-a1-ours"
    assert case["ratio"]["low"] <= 1 <= case["ratio"]["high"]


def test_two_folders_are_compared_case_by_case(tmp_path: Path) -> None:
    first = _folder(tmp_path / "a", a_case("ours", seed=1), a_case("gone"))
    second = _folder(tmp_path / "b", a_case("ours", seed=2), a_case("new"))
    done = convoy("compare", first, second)
    assert done.exit_code == 0
    assert "no difference detected" in done.stdout
    assert "Only in the first: throughput-a1-gone" in done.stdout
    assert "Only in the second: throughput-a1-new" in done.stdout


def test_other_fingerprints_are_refused_with_one_line_for_each_difference(tmp_path: Path) -> None:
    first = write_case(tmp_path / "a", a_case())
    other = a_case(hardware=HARDWARE.model_copy(update={"cores": 4, "device": "Xeon"}))
    done = convoy("compare", first, write_case(tmp_path / "b", other))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[1:] == ["  hardware.device: AMD EPYC 7R13 and Xeon", "  hardware.cores: 2 and 4"]


@pytest.mark.parametrize("text", ["{}", "{"])
def test_what_is_no_result_is_one_line(tmp_path: Path, text: str) -> None:
    good = write_case(tmp_path / "a", a_case())
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    done = convoy("compare", good, bad)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"convoy: {bad}: ")


def test_a_file_and_a_folder_are_not_compared_nor_an_empty_folder_read(tmp_path: Path) -> None:
    file, empty = write_case(tmp_path / "a", a_case()), tmp_path / "empty"
    empty.mkdir()
    assert_refused(f"{file} and {empty}: must be two files or two folders", "compare", file, empty)
    for words in (["compare", empty, empty], ["plan", "calibrate", empty, tmp_path / "own.json"]):
        assert_refused(f"{empty}: no results (*.json)", *words)


def test_what_cannot_be_read_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("thruput: 1")
    for path in (tmp_path / "none.yaml", tmp_path / "bad.yaml", tmp_path):
        done = convoy("audit", path)
        assert (done.exit_code, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three trainings on this host, one of them in two suites, and a case of an earlier version."""
    folder = tmp_path / "results"
    runs = [a_run(shipped_calibration("cpu"), f"{layers} layers", {"n_layers": layers}) for layers in (2, 4, 8)]
    for case in [*runs, runs[0].model_copy(update={"suite": "sync"}), a_case("old")]:
        write_case(folder, case)
    return folder


def test_a_benchmark_is_fitted_and_what_came_of_it_is_told(results: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    done = convoy("plan", "calibrate", results, own)
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
    convoy("plan", "calibrate", results, own)
    words = ("default", "--json", "--set", "train.param_dtype=fp32 cluster.nodes=2")
    with_it, without = (json.loads(convoy("plan", *words, *more).stdout) for more in (("--calibration", own), ()))
    assert without["step"] is None
    assert with_it["step"]["seconds"] > 0
    assert MEASURED.device in with_it["calibration"]


def test_the_machine_is_that_of_as_many_ranks_as_this_host_has_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {"device": "RTX", "kind": "cuda", "dtype": "bf16"}
    two, four = (MEASURED.model_copy(update={**measured, "ranks": ranks}) for ranks in (2, 4))
    own = tmp_path / "own.json"
    own.write_text(shipped_calibration("cuda").model_copy(update={"machines": (two, four)}).model_dump_json())
    monkeypatch.setattr("convoy.launch.checks.host.local_gpus", lambda: 4)
    told = json.loads(convoy("plan", "default", "--json", "--calibration", own).stdout)
    assert told["measured"]["ranks"] == 4


def test_a_calibration_of_several_devices_is_refused_only_where_one_is_needed(tmp_path: Path) -> None:
    other = MEASURED.model_copy(update={"device": "Intel Xeon"})
    own = tmp_path / "own.json"
    own.write_text(shipped_calibration().model_copy(update={"machines": (MEASURED, other)}).model_dump_json())
    line = f"--calibration {own}: it has machines of several devices: AMD EPYC 7R13, Intel Xeon"
    assert_refused(line, "plan", "default", "--calibration", own)
    assert convoy("plan", "gpt-7b-p4d", "--calibration", own).exit_code == 0


def test_a_calibration_without_the_planned_gpu_is_refused(results: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    convoy("plan", "calibrate", results, own)
    done = convoy("plan", "gpt-7b-p4d", "--calibration", own)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"convoy: --calibration {own}: A100: the calibration of ")
    assert f"it is of {MEASURED.device}" in done.stderr


def test_one_case_is_a_benchmark_too(results: Path, tmp_path: Path) -> None:
    one = next(path for path in results.glob("*layers*"))
    done = convoy("plan", "calibrate", str(one), str(tmp_path / "own.json"))
    assert done.exit_code == 0
    assert "1 case of 1 training" in done.stdout
    assert "by a fit to the others" not in done.stdout


def test_a_benchmark_that_tells_nothing_is_refused(tmp_path: Path) -> None:
    write_case(tmp_path / "results", a_case("old"))
    done = convoy("plan", "calibrate", str(tmp_path / "results"), str(tmp_path / "own.json"))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"convoy: {tmp_path / 'results'}: no case can be fitted to: 1 of 1: nothing was")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "own.json").exists()


def test_a_calibration_from_the_network_suite_alone_has_its_lines(tmp_path: Path) -> None:
    folder = tmp_path / "network"
    operations: tuple[Operation, ...] = ("all_gather", "reduce_scatter")
    for operation in operations:
        write_case(folder, network_case("direct exchange", operation, line=(1e-3, 40e6)))
    done = convoy("plan", "calibrate", str(folder), str(tmp_path / "own.json"))
    assert done.exit_code == 0, done.output
    assert "collectives between hosts, of 4 ranks on 4 hosts" in done.output
    (links,) = read_calibration(tmp_path / "own.json").links
    assert links.gather is not None
    assert links.gather.bytes_per_second == pytest.approx(40e6, rel=0.02)
    write_case(tmp_path / "other", network_case("backend", "broadcast", line=(1e-3, 40e6)))
    line = (
        f"{tmp_path / 'other'}: no collective was measured that training uses: all_gather, reduce_scatter or all_reduce"
    )
    assert_refused(line, "plan", "calibrate", tmp_path / "other", tmp_path / "no.json")
