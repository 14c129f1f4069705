"""Each mistake that somebody could make in infra/ is caught by one of its tests."""

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.infra.terraform import copy_repository, initialised
from tests.infra.test_refusals import REFUSED, refusals

pytestmark = pytest.mark.infra


class Mutation(NamedTuple):
    """An edit of one file."""

    name: str
    file: str
    """Below infra/."""
    before: str
    after: str
    test: str
    """FOLDER:FILE below infra/, or test_refusals.py: the tests that must fail."""


MUTATIONS = [Mutation(**each) for each in yaml.safe_load((Path(__file__).parent / "mutations.yaml").read_text())]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy whose stacks are ready to be tested."""
    repository = copy_repository(tmp_path_factory.mktemp("pristine"))
    for folder in sorted({mutation.test.partition(":")[0] for mutation in MUTATIONS if ":" in mutation.test}):
        initialised(repository, folder)
    return repository


@pytest.mark.sampled(41)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_a_mistake_is_caught(mutation: Mutation, pristine: Path, tmp_path: Path) -> None:
    repository = tmp_path / "edited"
    shutil.copytree(pristine, repository, symlinks=True)
    file = repository / "infra" / mutation.file
    text = file.read_text()
    assert mutation.before in text, "there is nothing to edit"
    file.write_text(text.replace(mutation.before, mutation.after))
    if mutation.test == "test_refusals.py":
        edited = str(Path(mutation.file).parent)
        cases = [(given, message) for folder, given, message in REFUSED if folder == edited]
        # Rather than that the variables make no sense any more.
        assert any(refusals(repository, edited, given) == [] for given, _ in cases)
        return
    folder, _, tests = mutation.test.partition(":")
    done = initialised(repository, folder).run("test", "-no-color", f"-filter={tests}", check=False)
    assert done.returncode == 1, "no test failed"
    # Rather than that the files make no sense any more.
    assert re.search(r"on tests/\w+\.tftest\.hcl line|Missing expected failure", done.stderr + done.stdout), done.stderr


def test_there_are_enough() -> None:
    assert len(MUTATIONS) >= 30
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
