"""Bad input: one line, the right exit code, and no run."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.error_cases import CASES, Case
from tests.flows.error_table import BEGIN, DOCUMENT, END, anew, outcome_of, row
from tests.flows.forked import Forked, forking
from tests.flows.runs import Run

TABLE = DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]


ALSO_ANEW = ("unknown key", "global batch smaller than the ranks", "job that another run is running")
"""Cases whose command is also run by an interpreter of its own, as all are that need one."""


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    with forking() as processes:
        yield processes


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", CASES, ids=[case.wrong for case in CASES])
def test_bad_input_is_told_in_the_line_that_the_table_says(
    case: Case, smoke: Run, forked: Forked, tmp_path: Path
) -> None:
    ways = [anew] if case.needs_interpreter else [forked.run, anew] if case.wrong in ALSO_ANEW else [forked.run]
    for i, run in enumerate(ways):
        outcome = outcome_of(case, smoke.copied(tmp_path / str(i)), smoke.job, run)
        assert outcome.code == case.code
        assert outcome.runs == (0 if case.code == 2 else 1)
        assert len(outcome.text.splitlines()) == 1
        assert row(case, outcome) in TABLE


def test_the_table_has_one_row_for_each_case() -> None:
    wrongs = re.findall(r"^\| ([^|]*) \|", TABLE, re.MULTILINE)
    assert wrongs[1:] == [case.wrong for case in CASES]
