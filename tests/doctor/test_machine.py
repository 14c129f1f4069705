"""The doctor sees what is there, names what is wrong, and says how to fix it."""

import io
import os
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from convoy.doctor.machine import (
    DEADLINE_SECONDS,
    check_extension,
    check_gpus,
    check_notices,
    check_packages,
    check_python,
    check_root_bucket,
    check_root_folder,
    check_shared_memory,
)
from convoy.doctor.report import check_machine, run_doctor
from convoy.drills.testbed.imds import ImdsStandIn
from convoy.storage import open_store
from tests.conftest import S3Server

pytestmark = pytest.mark.processes

OWN_BIN = str(Path(sys.prefix) / "bin")


def program(folder: Path, name: str, body: str) -> dict[str, str]:
    """An environment in which `name` is a shell script."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_a_working_environment_has_no_problem(tmp_path: Path) -> None:
    environ = {**os.environ, "PATH": f"{OWN_BIN}:{os.environ['PATH']}"}
    began = time.monotonic()
    findings = check_machine(environ, str(tmp_path))
    assert time.monotonic() - began < 2 * DEADLINE_SECONDS + 10
    assert [finding for finding in findings if finding.level == "problem"] == []
    assert [finding.name for finding in findings] == [
        "python on PATH", "packages", "Metaflow extension", "root", "shared memory", "GPU", "notices",
    ]  # fmt: skip


def test_the_environment_s_own_python_first_on_path_is_fine() -> None:
    finding = check_python({"PATH": f"{OWN_BIN}:/usr/bin"})
    assert (finding.level, finding.fix) == ("ok", "")
    assert OWN_BIN in finding.observed


def test_another_python_first_on_path_is_a_problem_and_the_line_to_mend_it_is_given(tmp_path: Path) -> None:
    environ = program(tmp_path, "python", "echo /some/other/prefix")
    finding = check_python(environ)
    assert finding.level == "problem"
    assert f"{tmp_path}/python, which is not the running interpreter" in finding.observed
    assert f'export PATH="{OWN_BIN}:$PATH"' in finding.fix


def test_the_installed_packages_are_named() -> None:
    finding = check_packages()
    assert finding.level == "ok"
    assert "torch 2" in finding.observed
    assert "metaflow 2" in finding.observed


@pytest.mark.parametrize(
    ("init", "observed"),
    [("", "Metaflow does not list the card type convoy_card"), ("raise ImportError", "Metaflow does not start within")],
)
def test_an_extension_that_metaflow_does_not_see_is_a_problem(init: str, observed: str, tmp_path: Path) -> None:
    (tmp_path / "metaflow").mkdir()
    (tmp_path / "metaflow" / "__init__.py").write_text(init)
    (tmp_path / "metaflow" / "plugins.py").write_text("CARDS = []\n")
    finding = check_extension({**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (finding.level, finding.observed[: len(observed)]) == ("problem", observed)


def test_looking_at_a_root_that_is_not_there_yet_does_not_make_it(tmp_path: Path) -> None:
    finding = check_root_folder(str(tmp_path / "a" / "b"))
    assert finding.level in ("ok", "warning")
    assert "GiB free" in finding.observed
    assert list(tmp_path.iterdir()) == []


def test_a_root_below_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finding = check_root_folder(f"file://{tmp_path}/file/below")
    assert finding.level == "problem"
    assert finding.observed == f"{tmp_path}/file/below: {tmp_path}/file cannot be written"


def test_a_bucket_that_creates_once_is_fine_and_nothing_is_left_in_it(s3_uri: str) -> None:
    finding = check_root_bucket(s3_uri)
    assert (finding.level, finding.observed) == ("ok", f"{s3_uri}: creates objects once")
    assert open_store(s3_uri).sizes("") == {}


def test_a_bucket_of_google_s_is_looked_at_alike(gcs_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_root_bucket(gcs_uri).observed == f"{gcs_uri}: creates objects once"
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    finding = check_root_bucket(gcs_uri)
    assert finding.level == "problem"
    assert "application default credentials" in finding.fix


def test_a_missing_bucket_is_a_problem(s3_environment: str) -> None:
    finding = check_root_bucket("s3://no-such-bucket-here/jobs")
    assert finding.level == "problem"
    assert "bucket does not exist" in finding.observed


def test_a_store_that_does_not_answer_is_told_within_the_deadline(
    s3_uri: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.stop()
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "8")
    monkeypatch.setattr("convoy.doctor.machine.DEADLINE_SECONDS", 0.5)
    began = time.monotonic()
    finding = check_root_bucket(s3_uri)
    assert time.monotonic() - began < 0.5 + 10
    assert (finding.level, finding.observed) == ("problem", f"{s3_uri}: no answer within 0.5 s")


def test_shared_memory_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    assert check_shared_memory(tmp_path / "shm").level == "warning"
    assert "GiB" in check_shared_memory(Path("/dev/shm")).observed


def test_without_nvidia_smi_training_is_said_to_run_on_the_cpu(tmp_path: Path) -> None:
    finding = check_gpus({"PATH": str(tmp_path)})
    assert (finding.level, finding.observed) == ("note", "no nvidia-smi: training runs on the CPU")


CARD = "NVIDIA H100 80GB HBM3, 81559 MiB, 550.54.15"


@pytest.mark.parametrize(
    ("body", "level", "observed"),
    [
        (f"echo '{CARD}'; echo '{CARD}'", None, f"{CARD}; {CARD}"),
        ("echo 'NVIDIA-SMI has failed'; exit 9", "problem", "nvidia-smi is here and fails"),
    ],
)
def test_gpus_are_what_the_driver_says(body: str, level: str | None, observed: str, tmp_path: Path) -> None:
    finding = check_gpus(program(tmp_path, "nvidia-smi", body))
    assert level in (None, finding.level)
    assert finding.observed.startswith(observed)


def test_where_notices_come_from_is_told(tmp_path: Path) -> None:
    with ImdsStandIn() as imds:
        found = check_notices({"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}, tmp_path)
    assert (found.level, found.observed) == ("ok", "notices of this machine's end come from spot, rebalance")


def test_no_notice_source_is_a_warning_only_where_there_should_be_one(tmp_path: Path) -> None:
    assert check_notices({}, tmp_path).level == "note"
    found = check_notices({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}, tmp_path)
    assert found.level == "warning"
    assert found.observed.startswith("no notice source: ")
    assert "--http-put-response-hop-limit 2" in found.observed


@pytest.mark.parametrize(("path", "code"), [(f"{OWN_BIN}:{os.environ['PATH']}", 0), ("/nonexistent", 1)])
def test_the_exit_code_is_one_when_there_is_a_problem(
    path: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("CONVOY_ROOT", str(tmp_path))
    assert run_doctor(Console(file=io.StringIO())) == code
