"""The planner's figures in docs/ are those of the code.

Those that take many fits are checked with CONVOY_CAMPAIGN=full.
"""

from types import ModuleType

import pytest

from tests.campaign import in_full
from tests.tools import tool as script

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return script("planner_tables")


QUICK = {"sample", "constants", "break-even"}
"""Tables that take no fits."""


def test_the_tables_are_up_to_date(tool: ModuleType) -> None:
    for path, names in tool.DOCUMENTS.items():
        document = path.read_text()
        assert tool.rewritten(document, [name for name in names if in_full() or name in QUICK]) == document, path


def test_each_table_has_its_marks_in_one_document(tool: ModuleType) -> None:
    assert sorted(name for names in tool.DOCUMENTS.values() for name in names) == sorted(tool.TABLES)
    for path, names in tool.DOCUMENTS.items():
        for name in names:
            begin = f"<!-- {name}: written by tools/planner_tables.py, not by hand -->\n"
            assert path.read_text().partition(begin)[2].startswith(("| ", "```text\n")), name


def test_the_picture_is_up_to_date(tool: ModuleType) -> None:
    assert tool.picture() == tool.PICTURE.read_text()


def test_each_part_that_is_left_out_is_one_of_the_constants(tool: ModuleType) -> None:
    known = set(tool._names(tool.shipped_calibration().constants))

    assert all(set(values) <= known for values in tool.ABLATIONS.values())
