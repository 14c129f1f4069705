"""What a case tells of where its figures come from."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

import convoy
from convoy.benchmark.groups import VariantSpec
from convoy.benchmark.measure.provenance import commit_of_sources, provenance
from tests.benchmark.benches import a_group

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@b")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_that_of_the_sources_and_tells_of_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package" / "__init__.py"
    package.parent.mkdir()
    package.write_text("")
    monkeypatch.setattr(convoy, "__file__", str(package))
    assert commit_of_sources() == ""
    git(tmp_path, "init")
    assert commit_of_sources() == "", "a checkout of something else, in which the package is installed"
    git(tmp_path, "add", ".")
    git(tmp_path, *IDENTITY, "commit", "-m", "x")
    assert commit_of_sources() == git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "beside").write_text("")
    assert not commit_of_sources().endswith("+changes")
    package.write_text("changed = True\n")
    assert commit_of_sources().endswith("+changes")


@pytest.mark.processes
def test_of_the_environment_only_what_changes_speed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_SECRET_TOKEN", "hidden")
    found = provenance(a_group(str(tmp_path), VariantSpec(name="ours")), datetime.now(UTC), {"torch": "2"})
    assert found.environment["NCCL_ALGO"] == "Ring"
    assert "hidden" not in found.environment.values()
    assert found.versions == {"torch": "2"}
