"""What is checked of a flow before its run exists, and what its dry run prints."""

import importlib.util
import json
import os
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from convoy.config.benchmark import BenchConfig, read_bench, resolve_bench
from convoy.config.errors import ConfigError, PrerequisiteMissing
from convoy.config.loader import configs_folder, read_run, resolve
from convoy.launch.benchmark.flow import _prepare_launch
from convoy.launch.benchmark.split import shares_of
from convoy.launch.benchmark.steps import COMMAND, settle
from convoy.launch.checks import preflight
from convoy.launch.flow import _dry_run
from tests.launch.price_list import refresh_prices


def on_spot(root: str) -> BenchConfig:
    cluster = {"backend": "kubernetes", "nodes": 4, "instance_type": "p4d.24xlarge", "market": "spot"}
    run = {"root": root, "cluster": cluster, "train": {"global_batch": 64}}
    return BenchConfig.model_validate({"suites": ["throughput", "recovery"], "run": run})


def check(config: BenchConfig, name: str = "run", **params: Any) -> None:
    root = SimpleNamespace(params={"datastore": "s3"})
    _prepare_launch(SimpleNamespace(info_name=name, params=params, find_root=lambda: root), config, shares_of(config))


def test_a_dry_run_has_the_price_that_a_refresh_brought(s3_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    refresh_prices(s3_uri, spot=5.0)
    with pytest.raises(SystemExit, match="0"):
        check(on_spot(s3_uri), dry_run=True)
    printed = capsys.readouterr()
    assert BenchConfig.model_validate_json(printed.out) == on_spot(s3_uri)
    assert "20.00 USD/h for a gang; 5.00 a machine and hour, spot in us-east-1, 2027-01-01 (AWS)" in printed.err
    assert "6 machines, 30.00 USD/h" in printed.err


def test_a_dry_run_needs_no_bucket(s3_environment: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        check(on_spot("s3://no-such-bucket/jobs"), dry_run=True)
    said = capsys.readouterr().err
    assert "  [ ] run.root = s3://no-such-bucket/jobs: " in said
    assert "39.60 USD/h for a gang; 9.90 (median; zones 6.53 to 13.99) a machine and hour" in said


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without extras, account and credentials, from which no store must be asked."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "KUBE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for module in ("storage", "launch.checks.preflight", "launch.pricing"):
        monkeypatch.setattr(f"convoy.{module}.open_store", None)


P4D = configs_folder() / "train" / "gpt-7b-p4d.yaml"


def test_a_dry_run_tells_all_that_is_missing_at_once(bare: None, capsys: pytest.CaptureFixture[str]) -> None:
    config = resolve(read_run(P4D.read_text()), {})
    _dry_run(config, preflight.survey_run(config, None, "local"))
    printed = capsys.readouterr()
    assert json.loads(printed.out) == config.model_dump(mode="json")
    told, _, missing = printed.err.partition("\nMissing before the run can start (8):\n")
    assert [line.removeprefix("  [ ] ").split(" ")[0].rstrip(":") for line in missing.splitlines()] == [
        "METAFLOW_DEFAULT_DATASTORE", "root", "data.corpus.path", "cluster.backend", "AWS",
        "METAFLOW_DATASTORE_SYSROOT_S3", "KUBECONFIG", "METAFLOW_KUBERNETES_CONTAINER_IMAGE",
    ]  # fmt: skip
    assert "price:       39.60 USD/h in all" in told
    assert "  @kubernetes(cpu=90, gpu=8," in told
    assert "  @kubernetes(cpu=4, memory=16777," in told
    assert re.search(r"\nPlan:\nmemory: +89%, 34", told)
    assert "prices are the catalog's alone: the root cannot be read yet" in told


def test_a_benchmark_s_dry_run_does_the_same(bare: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        check(resolve_bench(read_bench((configs_folder() / "bench" / "p4d.yaml").read_text()), {}), dry_run=True)
    told, _, missing = capsys.readouterr().err.partition("\nMissing before the run can start (7):\n")
    assert missing.startswith("  [ ] run.root = s3://YOUR-BUCKET/convoy: YOUR-BUCKET is no bucket; ")
    assert "  @batch(cpu=96, gpu=8," in told


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_wrong_configuration_is_refused_whatever_is_missing(bare: None, dry_run: bool) -> None:
    config = resolve(read_run(P4D.read_text()), {"cluster": {"backend": "batch"}})
    with pytest.raises(ConfigError, match=r"^cluster\.market = spot: AWS Batch runs no multi-node") as refused:
        (preflight.survey_run if dry_run else preflight.preflight)(config, None, "local")
    assert not isinstance(refused.value, PrerequisiteMissing)


def test_a_cluster_that_nothing_here_can_start_gangs_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^run\.cluster\.backend = kubernetes: needs the extra: pip install"):
        check(on_spot("s3://a-bucket/jobs"))


def test_the_cases_of_a_run_tell_the_words_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["benchmark_flow.py", "--config-value", "set", "suites=[utilisation] measure.rounds=9", "run"]
    monkeypatch.setattr("sys.argv", [*words[:1], "--quiet", *words[1:], "--tag", "nightly"])
    monkeypatch.setenv(COMMAND, "")
    config = BenchConfig(suites=("utilisation",))
    check(config)
    assert shlex.split(os.environ[COMMAND]) == ["python", *words]
    current = SimpleNamespace(flow_name="BenchmarkFlow", run_id="12")
    assert settle({}, config.model_dump(mode="json"), current)[2:] == ("BenchmarkFlow-12", os.environ[COMMAND])
    monkeypatch.delenv(COMMAND)  # a task that nobody told names the flow
    assert settle({}, config.model_dump(mode="json"), current)[3] == "BenchmarkFlow run"
