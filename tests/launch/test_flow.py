"""What is checked of a benchmark before its run exists, and what its dry run prints."""

import importlib.util
import os
import shlex
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from convoy.bench.recovery import SUITE as RECOVERY
from convoy.catalog.observed import Observed, merged
from convoy.config.bench import BenchConfig
from convoy.config.errors import ConfigError
from convoy.launch.bench_flow import _check_bench
from convoy.launch.bench_steps import COMMAND, settle
from convoy.launch.known_prices import NAME
from convoy.launch.shares import shares_of
from convoy.storage import open_store


def on_spot(root: str) -> BenchConfig:
    cluster = {"backend": "kubernetes", "nodes": 4, "instance_type": "p4d.24xlarge", "market": "spot"}
    run = {"root": root, "cluster": cluster, "train": {"global_batch": 64}}
    return BenchConfig.model_validate({"suites": ["throughput", RECOVERY], "run": run})


def check(config: BenchConfig, name: str = "run", **params: Any) -> None:
    root = SimpleNamespace(params={"datastore": "s3"})
    _check_bench(SimpleNamespace(info_name=name, params=params, find_root=lambda: root), config, shares_of(config))


def test_a_dry_run_has_the_price_that_a_refresh_brought(s3_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    row = Observed(
        instance="p4d.24xlarge", market="spot", region="us-east-1", usd_per_hour=(5.0,), date=date(2027, 1, 1),
        source="AWS",
    )  # fmt: skip
    open_store(s3_uri).write(NAME, merged(None, [row], datetime.now(UTC)).model_dump_json().encode())
    with pytest.raises(SystemExit, match="0"):
        check(on_spot(s3_uri), dry_run=True)
    printed = capsys.readouterr()
    assert BenchConfig.model_validate_json(printed.out) == on_spot(s3_uri)
    assert "20.00 USD/h for a gang; 5.00 a machine and hour, spot in us-east-1, 2027-01-01 (AWS)" in printed.err
    assert "6 machines, 30.00 USD/h" in printed.err


def test_a_dry_run_needs_no_account(s3_environment: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        check(on_spot("s3://no-such-bucket/jobs"), dry_run=True)
    said = capsys.readouterr().err
    assert "convoy: the price below is the catalog's: run.root = s3://no-such-bucket/jobs: " in said
    assert "39.60 USD/h for a gang; 9.90 (median; zones 6.53 to 13.99) a machine and hour" in said


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


def test_a_task_that_nobody_told_names_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMMAND, raising=False)
    current = SimpleNamespace(flow_name="BenchmarkFlow", run_id="argo-x")
    assert settle({}, {"suites": ["utilisation"]}, current)[3] == "BenchmarkFlow run"
