"""Every record is what the product makes now: see `python -m tests.golden`."""

from collections.abc import Iterator

import pytest

from tests.flows.forked import forking
from tests.golden.records import RECORDED, Made, records


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Made]]:
    with forking() as forked:
        yield records(forked, tmp_path_factory.mktemp("golden"))


NAMES = sorted(path.relative_to(RECORDED).as_posix() for path in RECORDED.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_made_is_as_it_was_recorded(name: str, made: dict[str, Made]) -> None:
    assert made[name]() == (RECORDED / name).read_text()


def test_each_record_has_its_file(made: dict[str, Made]) -> None:
    assert sorted(made) == NAMES
