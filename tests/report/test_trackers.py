"""Other tools read the same log."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from convoy.config.errors import ConfigError
from convoy.job.events.registry import StepDone
from convoy.report.trackers import flatten, scalars, to_mlflow, to_tensorboard
from tests.report.synthetic import CONFIG, SAMPLE, Log, resumed_job


def test_scalars_are_those_of_the_living_branch_and_finite() -> None:
    log = Log()
    log.start()
    log.add(StepDone(step=1, loss=math.nan, grad_norm=2.0, lr=1e-3, tokens=8, seconds=0.5), rank=0)
    assert {name for name, *_ in scalars(log.events)} == {
        "train/grad_norm", "train/learning_rate", "train/step_seconds", "train/tokens_per_second",
    }  # fmt: skip
    losses = [step for name, _, step, _ in scalars(resumed_job()) if name == "train/loss"]
    assert losses == list(range(1, 171))


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = resumed_job()
    n = to_tensorboard(events, tmp_path)
    board = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    board.Reload()
    tags = board.Tags()["scalars"]
    assert sum(len(board.Scalars(tag)) for tag in tags) == n
    loss = board.Scalars("train/loss")
    assert [s.step for s in loss] == list(range(1, 171))
    first = next(e for e in events if isinstance(e, StepDone))
    assert loss[0].value == pytest.approx(first.loss, rel=1e-6)
    assert loss[0].wall_time == pytest.approx(first.t)
    assert [s.step for s in board.Scalars("validation/bits_per_byte")] == [0, 85, 170]


@pytest.fixture
def mlflow_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a tracking store in a folder: the only kind that mlflow-skinny has without a server."""
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())


def test_mlflow_holds_the_metrics_parameters_times_and_texts(mlflow_client: Any) -> None:
    events, client = resumed_job(), mlflow_client
    run_id = to_mlflow(events, client.tracking_uri, "stdlib", "TrainFlow/7", CONFIG)
    run = client.get_run(run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "TrainFlow/7")
    assert run.info.start_time == int(1000 * events[0].t)
    assert run.data.params["train.global_batch"] == "8"
    assert [m.step for m in client.get_metric_history(run_id, "train/loss")] == list(range(1, 171))
    (text,) = client.list_artifacts(run_id, "samples")
    assert Path(client.download_artifacts(run_id, text.path)).read_text() == f"def main({SAMPLE}"


def test_a_second_run_joins_the_same_experiment(mlflow_client: Any) -> None:
    runs = {to_mlflow(resumed_job()[:40], mlflow_client.tracking_uri, "stdlib", name) for name in ("a", "b")}
    experiment = mlflow_client.get_experiment_by_name("stdlib")
    assert experiment is not None
    assert {r.info.run_id for r in mlflow_client.search_runs([experiment.experiment_id])} == runs


def test_a_tracking_uri_that_mlflow_refuses_is_bad_input() -> None:
    with pytest.raises(ConfigError, match=r"^tracking_uri = gopher://here: "):
        to_mlflow([], "gopher://here", "e", "r")


@pytest.mark.parametrize("package", ["tensorboard", "mlflow"])
def test_a_missing_package_is_named_with_what_to_install(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    read = {
        "tensorboard": lambda: to_tensorboard([], tmp_path),
        "mlflow": lambda: to_mlflow([], str(tmp_path), "e", "r"),
    }
    with pytest.raises(ConfigError, match=rf"pip install 'metaflow-convoy\[{package}\]'"):
        read[package]()


def test_nested_parameters_become_dotted_names() -> None:
    assert dict(flatten({"a": {"b": 1, "c": {"d": None}}, "e": [2]})) == {"a.b": 1, "a.c.d": None, "e": [2]}


def test_no_page_terminal_or_reader_imports_torch_or_metaflow(tmp_path: Path) -> None:
    code = (
        "import sys, convoy.report.pages.train, convoy.display.terminal, convoy.report.train_report;"
        "import convoy.report.trackers as r;"
        f"r.to_tensorboard([], {str(tmp_path)!r});"
        "sys.exit(bool({'torch', 'metaflow', 'tensorflow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
