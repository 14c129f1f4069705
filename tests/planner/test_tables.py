"""The figures of docs/planner.md are those of the code.

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


def test_the_tables_are_up_to_date(tool: ModuleType) -> None:
    document = tool.DOCUMENT.read_text()

    assert tool.rewritten(document, tool.TABLES if in_full() else ["sample", "constants", "break-even"]) == document


def test_the_tables_are_there_to_be_brought_up_to_date(tool: ModuleType) -> None:
    document = tool.DOCUMENT.read_text()

    for name in tool.TABLES:
        begin = f"<!-- {name}: written by tools/planner_tables.py, not by hand -->\n"
        assert document.partition(begin)[2].startswith(("| ", "```text\n")), name


def test_the_picture_is_up_to_date(tool: ModuleType) -> None:
    assert tool.picture() == tool.PICTURE.read_text()


def test_each_part_that_is_left_out_is_one_of_the_constants(tool: ModuleType) -> None:
    known = set(tool._names(tool.shipped().constants))

    assert all(set(values) <= known for values in tool.ABLATIONS.values())
