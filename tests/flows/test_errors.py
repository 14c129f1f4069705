"""Bad input: one line, the right exit code, and no run."""

import re
from pathlib import Path

import pytest

from tests.flows.error_cases import CASES, Case
from tests.flows.error_table import BEGIN, DOCUMENT, END, anew, outcome_of, row
from tests.flows.forked import Forked
from tests.flows.runs import job_of_20_steps

TABLE = DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]


ALSO_ANEW = ("unknown key", "global batch smaller than the ranks", "job that another run is running")
"""Cases whose command is also run by an interpreter of its own, as all are that need one."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", CASES, ids=[case.wrong for case in CASES])
def test_bad_input_is_told_in_the_line_that_the_table_says(case: Case, forked: Forked, tmp_path: Path) -> None:
    ways = [anew] if case.needs_interpreter else [forked.run, anew] if case.wrong in ALSO_ANEW else [forked.run]
    for i, run in enumerate(ways):
        outcome = outcome_of(case, *job_of_20_steps(tmp_path / str(i)), run)
        assert outcome.code == case.code
        assert outcome.runs == (0 if case.code == 2 else 1)
        assert len(outcome.text.splitlines()) == 1
        assert row(case, outcome) in TABLE


def test_the_table_has_one_row_for_each_case() -> None:
    wrongs = re.findall(r"^\| ([^|]*) \|", TABLE, re.MULTILINE)
    assert wrongs[1:] == [case.wrong for case in CASES]
