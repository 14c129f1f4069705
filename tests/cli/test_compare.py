"""`convoy compare` on results that are on disk."""

import json
from pathlib import Path

import click.testing
import pytest

from convoy.benchmark.results.case import Case
from convoy.benchmark.results.files import write_case
from convoy.cli.main import main
from tests.benchmark.results.cases import HARDWARE, a_case


def compare(*words: str | Path) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, ["compare", *map(str, words)], env={"COLUMNS": "200"})


def _folder(path: Path, *cases: Case) -> Path:
    for case in cases:
        write_case(path, case)
    return path


def test_two_files_are_compared(tmp_path: Path) -> None:
    first = write_case(tmp_path / "a", a_case(seconds=0.5, seed=1))
    second = write_case(tmp_path / "b", a_case(seconds=0.6, seed=2))
    done = compare(first, second)
    assert done.exit_code == 0
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("throughput-a1-ours")]
    assert "4.1" in row
    assert "0.83" in row
    assert row.rstrip().endswith("SLOWER in this run")


def test_two_folders_are_compared_case_by_case(tmp_path: Path) -> None:
    first = _folder(tmp_path / "a", a_case("ours", seed=1), a_case("gone"))
    second = _folder(tmp_path / "b", a_case("ours", seed=2), a_case("new"))
    done = compare(first, second)
    assert done.exit_code == 0
    assert "no difference seen" in done.stdout
    assert "Only in the first: throughput-a1-gone" in done.stdout
    assert "Only in the second: throughput-a1-new" in done.stdout


def test_json_is_for_machines(tmp_path: Path) -> None:
    first = write_case(tmp_path / "a", a_case(seconds=0.5, seed=1))
    told = json.loads(compare(first, first, "--json").stdout)
    (case,) = told["cases"]
    assert case["case"] == "throughput-a1-ours"
    assert case["ratio"]["low"] <= 1 <= case["ratio"]["high"]


def test_other_fingerprints_are_refused_with_one_line_for_each_difference(tmp_path: Path) -> None:
    first = write_case(tmp_path / "a", a_case())
    other = a_case(hardware=HARDWARE.model_copy(update={"cores": 4, "device": "Xeon"}))
    done = compare(first, write_case(tmp_path / "b", other))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[1:] == ["  hardware.device: AMD EPYC 7R13 and Xeon", "  hardware.cores: 2 and 4"]


@pytest.mark.parametrize("text", ["{}", "{"])
def test_what_is_no_result_is_one_line(tmp_path: Path, text: str) -> None:
    good = write_case(tmp_path / "a", a_case())
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    done = compare(good, bad)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"convoy: {bad}: ")


def test_a_file_and_a_folder_are_not_compared(tmp_path: Path) -> None:
    file = write_case(tmp_path / "a", a_case())
    done = compare(file, tmp_path / "a")
    assert done.exit_code == 2
    assert "must be two files or two folders" in done.stderr


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    done = compare(tmp_path, tmp_path)
    assert done.exit_code == 2
    assert "no results" in done.stderr
