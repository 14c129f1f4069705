"""The command that makes a report of a folder."""

import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from convoy.benchmark.analysis.report import FORMAT, BenchReport
from convoy.benchmark.page import BenchReports
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.files import write_case
from tests.benchmark.cases import runs_of, throughput, whole
from tests.benchmarks import FOLDER


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
def test_the_same_results_give_the_same_bytes_in_each_form(
    tmp_path: Path, form: str, start: bytes, generate_here: Generate
) -> None:
    """HTML in another process too; the reports that are kept here show it of the other forms."""
    results = folder(tmp_path / "results", whole())
    first = generate_here(results, "--format", form)
    assert first.returncode == 0, first.stderr
    text = (results / "report.html").read_bytes() if form == "html" else first.stdout
    assert text.startswith(start)
    other = folder(tmp_path / "copied", whole()[::-1])
    again = generate if form == "html" else generate_here
    assert again(other, "--format", form, "--output", tmp_path / "new" / "report").returncode == 0
    assert (tmp_path / "new" / "report").read_bytes() == text


def test_html_is_written_beside_the_results_and_asks_for_nothing_from_a_network(
    tmp_path: Path, generate_here: Generate
) -> None:
    results = folder(tmp_path / "results", whole())
    done = generate_here(results, "--format", "html")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode() == f"generate_report: the report is {results / 'report.html'}\n"
    page = (results / "report.html").read_text()
    assert "<svg" in page
    assert re.findall(r"<(?:script|link|img|iframe|object|embed)\b|@import", page) == []
    targets = re.findall(r"""(?:src|href|srcset|action)\s*=\s*["']([^"']*)|url\(["']?([^"')]*)""", page)
    assert {target[:1] for pair in targets for target in pair if target} <= {"#"}
    assert generate_here(results, "--format", "json").returncode == 0  # the page is not one of the results


def test_html_needs_no_extra() -> None:
    """What draws the charts is installed with the package itself, as `make train` installs it."""
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    assert any(Requirement(line).name == "vl-convert-python" for line in project["dependencies"])


@pytest.mark.parametrize("form", ["md", "json"])
def test_the_results_that_are_kept_here_give_the_reports_beside_them(form: str, generate_here: Generate) -> None:
    kept = FOLDER / "results"
    done = generate_here(kept / "benchmark", "--format", form)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (kept / f"benchmark.{form}").read_bytes()


def test_json_has_the_figures_and_can_be_read_back(tmp_path: Path, generate_here: Generate) -> None:
    done = generate_here(folder(tmp_path / "results", whole()), "--format", "json")
    report = BenchReport.model_validate_json(done.stdout)
    assert [group.suite for group in report.groups] == ["throughput", "strategies", "scaling"]
    told = json.loads(done.stdout)
    assert told["format"] == FORMAT
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
    told = (folders[0] / "report.html").read_text() if form == "html" else done.stdout.decode()
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
    assert again.stderr.decode() == f"generate_report: {folders[0]}: appears twice\n"


def test_what_stands_in_the_way_is_one_line(tmp_path: Path, generate_here: Generate) -> None:
    results = folder(tmp_path / "results", throughput())
    for words in ([tmp_path / "nowhere"], [results, "--prices", tmp_path / "none.json"]):
        done = generate_here(*words)
        assert (done.returncode, done.stdout) == (2, b"")
        (line,) = done.stderr.decode().splitlines()
        assert line.startswith("generate_report: ")
