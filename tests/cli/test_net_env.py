"""`convoy net env` says what is wrong with an environment, and fails if something is harmful."""

import json
from pathlib import Path

import pytest

from tests.cli import assert_refused, convoy

STACK = ("--nccl", "2.27.7", "--ofi", "1.16.3", "--libfabric", "2.1.0", "--instance", "p5.48xlarge")


def written(folder: Path, text: str) -> Path:
    path = folder / "job.sh"
    path.write_text(text)
    return path


def test_a_harmful_variable_of_a_file_is_exit_code_1(tmp_path: Path) -> None:
    done = convoy("net", "env", "--env", written(tmp_path, "export RDMAV_FORK_SAFE=1 FI_PROVIDER=efa\n"), *STACK)
    assert done.exit_code == 1
    assert "harmful" in done.stdout
    assert "unset RDMAV_FORK_SAFE" in done.stdout
    assert "https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md, read on 2026-11-27" in done.stdout


def test_an_obsolete_variable_is_no_failure_and_json_has_reason_and_source(tmp_path: Path) -> None:
    done = convoy("net", "env", "--json", "--env", written(tmp_path, "FI_PROVIDER=efa\nSECRET=x\n"), *STACK)
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert report["stack"] == {"nccl": "2.27.7", "ofi": "1.16.3", "libfabric": "2.1.0", "instance": "p5.48xlarge"}
    (found,) = report["findings"]
    assert (found["variable"], found["severity"], found["fix"]) == ("FI_PROVIDER", "obsolete", "unset FI_PROVIDER")
    assert found["reason"]
    assert found["source"].startswith("https://")
    assert "SECRET" not in done.stdout


def test_without_a_file_the_environment_of_the_process_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_NET", "Socket")
    assert convoy("net", "env", *STACK).exit_code == 1
    monkeypatch.delenv("NCCL_NET")
    assert convoy("net", "env", *STACK).exit_code == 0


def test_without_versions_nothing_is_guessed(tmp_path: Path) -> None:
    done = convoy("net", "env", "--env", written(tmp_path, "NCCL_PROTO=simple\n"))
    assert done.exit_code == 0
    assert "Nothing is known to be harmful" in done.stdout
    assert "aws-ofi-nccl >=1.16 and NCCL >=2.21" in done.stdout


def test_only_the_options_that_were_not_given_are_asked_for() -> None:
    assert "To decide these, give --libfabric." in convoy("net", "env", *STACK[:4], *STACK[6:]).stdout


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    assert_refused("--nccl new: must be a version such as 2.27.7", "net", "env", "--nccl", "new")
    assert_refused(
        "--instance p6: not in the catalog; did you mean p6-b200.48xlarge?", "net", "env", "--instance", "p6"
    )
    assert_refused(f"--env {tmp_path}: cannot be read: Is a directory", "net", "env", "--env", tmp_path)
    assert_refused(
        f"--env {written(tmp_path, 'hello')}: no line sets a variable; lines must be NAME=VALUE or export NAME=VALUE",
        "net", "env", "--env", tmp_path / "job.sh",
    )  # fmt: skip
