"""What of the user's account is missing, as far as this machine can tell."""

from pathlib import Path
from typing import Any

import metaflow.metaflow_config
import pytest

from convoy.config.errors import collect_missing
from convoy.config.loader import resolve
from convoy.launch.checks.preflight import account_demands

SETTINGS = ("DATASTORE_SYSROOT_S3", "BATCH_JOB_QUEUE", "ECS_S3_ACCESS_IAM_ROLE", "SERVICE_URL", "BATCH_CONTAINER_IMAGE",
            "KUBERNETES_CONTAINER_IMAGE")  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, s3_environment: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a user with credentials, without any of Metaflow's settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name in SETTINGS:
        monkeypatch.setattr(metaflow.metaflow_config, name, None)
    return tmp_path


def missing(**cluster: Any) -> list[str]:
    config = resolve({"cluster": cluster}, {})
    return [str(each).split(":")[0].removeprefix("METAFLOW_") for each in collect_missing(account_demands(config))]


def test_batch_needs_what_metaflow_must_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing() == []  # of a local run
    assert missing(backend="batch") == [*SETTINGS[:5]]
    assert missing(backend="batch", iam_role="a", image="b", queue="c") == [SETTINGS[0], SETTINGS[1], SETTINGS[3]]
    for name in SETTINGS:
        monkeypatch.setattr(metaflow.metaflow_config, name, "set")
    assert missing(backend="batch") == []


def test_kubernetes_needs_a_kubeconfig_where_the_client_looks_for_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metaflow.metaflow_config, SETTINGS[0], "s3://bucket/metaflow")
    assert missing(backend="kubernetes", image="b") == ["KUBECONFIG"]
    with monkeypatch.context() as inside:  # a pod, which has its service account
        inside.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        assert missing(backend="kubernetes", image="b") == []
    (home / "other").write_text("")
    monkeypatch.setenv("KUBECONFIG", f"/nowhere:{home}/other")
    assert missing(backend="kubernetes", image="b") == []
    monkeypatch.delenv("KUBECONFIG")
    (home / ".kube").mkdir()
    (home / ".kube" / "config").write_text("")
    assert missing(backend="kubernetes", image="b") == []
