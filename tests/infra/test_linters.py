"""hadolint and shellcheck find nothing in infra/."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.terraform import REPOSITORY

pytestmark = pytest.mark.infra

INFRA = REPOSITORY / "infra"
SCRIPTS = [path for path in INFRA.rglob("*.sh") if ".terraform" not in path.parts]


def lint(tool: str, file: Path) -> None:
    command = [str(Path(sys.executable).parent / tool), str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_hadolint_finds_nothing() -> None:
    lint("hadolint", INFRA / "image" / "Dockerfile")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    lint("shellcheck", script)
