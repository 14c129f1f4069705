"""The command that makes a report of a folder."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from convoy.report.bench_report import BenchReport
from convoy.report.bench_several import BenchReports
from convoy.results.case import Case
from convoy.results.files import write_case
from tests.benchmarks import FOLDER
from tests.report.bench_cases import runs_of, throughput, whole


def generate(*words: str | Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, str(FOLDER / "generate_report.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, timeout=120, check=False)


Generate = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def generate_here(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Generate:
    """The same in this process, which has imported what it needs."""

    def run(*words: str | Path) -> subprocess.CompletedProcess[bytes]:
        command = [str(FOLDER / "generate_report.py"), *map(str, words)]
        monkeypatch.setattr(sys, "argv", command)
        code = 0
        try:
            runpy.run_path(command[0], run_name="__main__")
        except SystemExit as error:
            code = int(error.code or 0)
        return subprocess.CompletedProcess(command, code, *capsysbinary.readouterr())

    return run


def folder(path: Path, cases: list[Case]) -> Path:
    for case in cases:
        write_case(path, case)
    return path


@pytest.mark.parametrize(("form", "start"), [("html", b"<!doctype html>"), ("md", b"# "), ("json", b"{")])
def test_the_same_results_give_the_same_bytes_in_each_form(tmp_path: Path, form: str, start: bytes) -> None:
    results = folder(tmp_path / "results", whole())
    first = generate(results, "--format", form)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith(start)
    other = folder(tmp_path / "copied", whole()[::-1])
    assert generate(other, "--format", form, "--output", tmp_path / "new" / "report").returncode == 0
    assert (tmp_path / "new" / "report").read_bytes() == first.stdout


@pytest.mark.parametrize("form", ["md", "json"])
def test_the_results_that_are_kept_here_give_the_reports_beside_them(form: str) -> None:
    kept = FOLDER / "results"
    done = generate(kept / "benchmark", "--format", form)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (kept / f"benchmark.{form}").read_bytes()


def test_json_has_the_figures_and_can_be_read_back(tmp_path: Path, generate_here: Generate) -> None:
    done = generate_here(folder(tmp_path / "results", whole()), "--format", "json")
    report = BenchReport.model_validate_json(done.stdout)
    assert [group.suite for group in report.groups] == ["throughput", "strategies", "scaling"]
    told = json.loads(done.stdout)
    assert told["format"] == 1
    assert told["history"] is None
    assert told["groups"][0]["cases"][0]["tokens_per_second"]["n"] == 20


def test_earlier_results_are_the_history(tmp_path: Path, generate_here: Generate) -> None:
    (ours, *_) = throughput()
    folders = []
    for i, run in enumerate(runs_of(ours, [4000.0, 4100.0])):
        folders += ["--earlier", folder(tmp_path / f"earlier-{i}", [run])]
    done = generate_here(folder(tmp_path / "results", [ours]), "--format", "json", *folders)
    (history,) = BenchReport.model_validate_json(done.stdout).history or ()
    assert [round(run.tokens_per_second) for run in history.runs][:2] == [4000, 4100]
    assert len(history.runs) == 3


@pytest.mark.parametrize("form", ["html", "md", "json"])
def test_several_folders_stand_side_by_side_under_their_names(
    form: str, tmp_path: Path, generate_here: Generate
) -> None:
    folders = [folder(tmp_path / name, throughput()) for name in ("p4d", "p5")]
    done = generate_here(*folders, "--format", form)
    assert done.returncode == 0, done.stderr
    told = done.stdout.decode()
    if form == "json":
        report = BenchReports.model_validate_json(told)
        assert list(report.folders) == ["p4d", "p5"]
        assert report.folders["p5"].groups == report.folders["p4d"].groups != ()
    else:
        for words in ("p4d: Throughput", "p5: Throughput", "Cost and time to train"):
            assert words in told


def test_folders_of_one_name_are_called_by_their_paths_and_one_given_twice_is_refused(
    tmp_path: Path, generate_here: Generate
) -> None:
    folders = [folder(tmp_path / name / "results", throughput()[:1]) for name in ("a", "b")]
    done = generate_here(*folders, "--format", "json")
    assert list(BenchReports.model_validate_json(done.stdout).folders) == [str(each) for each in folders]
    again = generate_here(folders[0], folders[0])
    assert (again.returncode, again.stdout) == (2, b"")
    assert again.stderr.decode() == f"generate_report: {folders[0]}: is given twice\n"


def test_what_stands_in_the_way_is_one_line(tmp_path: Path, generate_here: Generate) -> None:
    results = folder(tmp_path / "results", throughput())
    for words in ([tmp_path / "nowhere"], [results, "--prices", tmp_path / "none.json"]):
        done = generate_here(*words)
        assert (done.returncode, done.stdout) == (2, b"")
        (line,) = done.stderr.decode().splitlines()
        assert line.startswith("generate_report: ")
