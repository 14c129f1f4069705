"""Which cases of slow families a commit's tests try."""

import pytest

from tests.campaign import left_out

pytestmark = pytest.mark.processes

FILE = """
import pytest

@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", range(7))
def test_many(case): pass

@pytest.mark.sampled(2)
def test_one(): pass

def test_always(): pass
"""


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[pytest.Item]:
    pytester.makeini("[pytest]\nmarkers = sampled(shares)")
    return list(pytester.getitems(FILE))


def test_each_case_is_tried_by_one_of_so_many_commits_in_a_row(items: list[pytest.Item]) -> None:
    tried = [{item.name for item in items} - {item.name for item in left_out(items, commit)} for commit in range(6)]
    for name in {item.name for item in items}:
        commits = 6 if name == "test_always" else 3 if name == "test_one" else 2
        assert sum(name in names for names in tried) == commits
    assert {len(names) for names in tried} <= {3, 4, 5}


def test_all_who_test_a_commit_try_the_same(items: list[pytest.Item]) -> None:
    assert left_out(items, 41) == left_out(list(items), 41) != left_out(items, 42)
