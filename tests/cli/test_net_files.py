"""`convoy net import` and `convoy net export` from files to files."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from convoy.cli.main import main
from tests.network.results.nccl_output import Output, json_of, text_of_2_13


def convoy(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["net", *map(str, arguments)])


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_is_imported_exported_and_imported_again_with_the_same_cases(tmp_path: Path) -> None:
    source = written(tmp_path, "run.json", json_of(Output(), per_iteration=True))
    first = convoy("import", source, "-o", tmp_path / "a", "--link-gbps", 400)
    assert first.exit_code == 0, first.output
    assert "all_reduce, 16 ranks, 2 hosts, NCCL 2.28.7" in first.output
    exported = convoy("export", tmp_path / "a", "-o", tmp_path / "again.json")
    assert exported.exit_code == 0, exported.output
    second = convoy("import", tmp_path / "again.json", "-o", tmp_path / "b")
    assert second.exit_code == 0, second.output
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["network-all_reduce-imported-in-place.json", "network-all_reduce-imported.json"]
    for name in names:
        assert (tmp_path / "a" / name).read_text() == (tmp_path / "b" / name).read_text()


def test_a_row_that_cannot_be_true_is_named_with_file_and_line_and_the_exit_code_is_1(tmp_path: Path) -> None:
    text = text_of_2_13(Output())
    number, row = next((i, line) for i, line in enumerate(text.splitlines(), 1) if " 4194304 " in line)
    words = row.split()
    path = written(tmp_path, "run.txt", text.replace(words[7], f"{float(words[7]) * 2:.2f}"))
    result = convoy("import", path, "--json")
    assert result.exit_code == 1
    (file,) = json.loads(result.output)["files"]
    assert {(each["path"], each["where"]) for each in file["contradictions"]} == {(str(path), f"line {number}")}
    assert f"line {number}: 16777216 bytes" in convoy("import", path).output


def test_a_share_of_the_bound_is_shown_only_if_the_link_s_rate_is_given(tmp_path: Path) -> None:
    path = written(tmp_path, "run.txt", text_of_2_13(Output(times=[(2**28, 25000.0, 25000.0)])))
    assert "Of bound" not in convoy("import", path).output
    shown = json.loads(convoy("import", path, "--link-gbps", 400, "--json").output)["files"][0]["rows"]
    assert shown[0]["bound_share"] == pytest.approx(80.53 / 93.75, rel=1e-3)
    assert convoy("import", path, "--link-gbps", 300).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["import", "no.txt"], "no.txt: cannot be read"),
        (["import", "other.txt"], "other.txt: not a result that is known"),
        (["import", "run.txt", "--op", "all_redoce"], "--op all_redoce: must be one of"),
        (["import", "run.txt", "--link-gbps", "0"], "--link-gbps 0: must be more than 0"),
        (["import", "run.txt", "run.json", "-o", "out"], "network-all_reduce-imported is also in run.txt"),
        (["export", "cases"], "choose one"),
        (["export", "cases", "--case", "ring"], "--case ring: there is no case of a collective"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "other.txt", "nothing of the kind\n")
    written(tmp_path, "run.txt", text_of_2_13(Output()))
    written(tmp_path, "run.json", json_of(Output()))
    gathers = written(tmp_path, "gathers.txt", text_of_2_13(Output(operation="all_gather")))
    assert convoy("import", "run.txt", gathers, "-o", "cases").exit_code == 0
    result = convoy(*arguments)
    assert result.exit_code == 2
    assert reason in result.output
    assert result.output.count("\n") == 1


def test_rows_of_a_repeated_size_name_their_cycle(tmp_path: Path) -> None:
    document = json.loads(json_of(Output(times=[(2**22, 812.3, 799.0)])))
    assert "Cycle" not in convoy("import", written(tmp_path, "once.json", json.dumps(document))).output
    document["results"] *= 2
    path = written(tmp_path, "twice.json", json.dumps(document))
    rows = json.loads(convoy("import", path, "--json").output)["files"][0]["rows"]
    assert [row["cycle"] for row in rows] == [1, 1, 2, 2]
    assert "Cycle" in convoy("import", path).output
