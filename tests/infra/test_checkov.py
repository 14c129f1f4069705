"""checkov finds nothing in the stacks and their modules, but for what infra/checkov.json skips with a reason."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.infra.terraform import REPOSITORY, copy_repository

pytestmark = pytest.mark.infra

CHECKOV = REPOSITORY / ".venv-checkov" / "bin" / "checkov"
SKIPS = REPOSITORY / "infra" / "checkov.json"


@pytest.mark.parametrize("stack", ["aws-batch", "aws-eks"])
def test_it_finds_nothing(stack: str, tmp_path: Path) -> None:
    skips = json.loads(SKIPS.read_text())
    assert all(skips.values()), "each skip has a reason"
    folder = copy_repository(tmp_path) / "infra" / stack
    looked_at = ["--directory", str(folder), "--framework", "terraform", "--download-external-modules", "false"]
    printed = ["--skip-check", ",".join(skips), "--compact", "--quiet", "--output", "json"]
    done = subprocess.run([str(CHECKOV), *looked_at, *printed], capture_output=True, text=True)
    report = json.loads(done.stdout)
    failed = {(each["check_id"], each["check_name"], each["resource"]) for each in report["results"]["failed_checks"]}
    assert failed == set()
    assert report["summary"]["passed"] > 50, "it looked at little"
