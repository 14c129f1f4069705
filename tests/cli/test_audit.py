"""`convoy audit` on files of claims."""

import json
from pathlib import Path

import click.testing

from convoy.cli.main import main

PAGES = Path(__file__).parents[1] / "audit" / "pages"


def audit(*words: str | Path) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, ["audit", *map(str, words)], env={"COLUMNS": "200"})


def test_contradictions_are_shown_with_their_arithmetic_and_exit_code_3() -> None:
    done = audit(PAGES / "acceptance.yaml")
    assert done.exit_code == 3
    assert "1 T tokens / 145,267 tokens/s = 79.7 days, not 57 h" in done.stdout
    assert "Perhaps a factor of 8: bits for bytes? 189.6 Gbit/s are 23.7 GB/s" in done.stdout
    assert "mpt-7b" in done.stdout


def test_a_consistent_page_has_exit_code_0() -> None:
    done = audit(PAGES / "consistent.yaml")
    assert done.exit_code == 0
    assert "which agree with each other and with the hardware's limits." in done.stdout


def test_json_is_for_machines() -> None:
    done = audit(PAGES / "acceptance.yaml", "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["consistent"], told["format"]) == (3, False, 1)
    first = told["findings"][0]
    assert first["kind"] == "contradiction"
    assert first["claims"] == [
        "page.tokens = 1 T", "runs.headline.throughput = 145,267 tokens/s", "runs.headline.time = 57 h",
    ]  # fmt: skip


def test_what_cannot_be_read_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("thruput: 1")
    for path in (tmp_path / "none.yaml", tmp_path / "bad.yaml", tmp_path):
        done = audit(path)
        assert (done.exit_code, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
