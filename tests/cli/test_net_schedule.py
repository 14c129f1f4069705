"""`convoy net schedule`."""

import json

import pytest
from click.testing import CliRunner, Result

from convoy.cli.main import main


def convoy(*words: str) -> Result:
    return CliRunner().invoke(main, ["net", "schedule", *words], prog_name="convoy")


def test_a_schedule_is_printed_by_rounds() -> None:
    done = convoy("all_gather", "--algorithm", "ring", "--ranks", "2")
    assert done.exit_code == 0
    assert done.output.splitlines()[1:] == ["round 1", "  0 → 1: chunk 0, copied", "  1 → 0: chunk 1, copied"]


def test_json_has_ranks_chunks_and_rounds() -> None:
    done = convoy("all_reduce", "--algorithm", "recursive doubling", "--ranks", "2", "--json")
    assert json.loads(done.output) == {
        "ranks": 2,
        "chunks": 1,
        "rounds": [
            [{"from": 0, "to": 1, "chunks": [0], "op": "add"}, {"from": 1, "to": 0, "chunks": [0], "op": "add"}]
        ],
    }


def test_an_all_to_all_says_where_chunks_are_stored() -> None:
    done = convoy("all_to_all", "--algorithm", "pairwise", "--ranks", "2")
    assert "0 keeps chunk 0 as chunk 2" in done.output
    assert "0 → 1: chunk 1 as chunk 2, copied" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("all_to_one", "--algorithm", "ring", "--ranks", "4"), "OP = all_to_one: must be one of"),
        (("all_reduce", "--algorithm", "rings", "--ranks", "4"), "--algorithm rings: must be one of"),
        (
            ("all_gather", "--algorithm", "halving-doubling", "--ranks", "6"),
            "--ranks 6, --ranks-per-host 1: halving-doubl",
        ),
    ],
)
def test_what_does_not_exist_is_one_line(words: tuple[str, ...], message: str) -> None:
    done = convoy(*words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
