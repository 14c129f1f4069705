"""MLflow: one run per job in a tracking server, or in a folder. MLflow itself says what it has."""

import os
from collections.abc import Sequence
from typing import Any

from convoy.config.errors import ConfigError
from convoy.report.trackers.points import Point, Text, flatten
from convoy.report.trackers.tracker import Ending, TrackedRun, TrackerState, missing_package

METRICS, PARAMETERS, VALUE = 1000, 100, 6000
"""Per request, and characters of a parameter; MLflow's REST API refuses more."""

EXPERIMENT = "convoy"
"""The experiment, unless $MLFLOW_EXPERIMENT_NAME or `convoy replay --experiment` names another."""

_STATUS: dict[Ending, str] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MlflowTracker:
    """Logs into the run that has the job's tags."""

    takes_back = False

    def __init__(self, uri: str, experiment: str | None = None) -> None:
        """uri: a tracking URI. experiment: None: by default."""
        self._uri = uri
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        self._client: Any = None
        self.run_id = ""

    @property
    def place(self) -> str:
        """As `Tracker.place`."""
        return f"MLflow run {self.run_id}"

    def open(self, run: TrackedRun) -> TrackerState:
        """As `Tracker.open`."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise missing_package("mlflow", error) from error
        try:
            self._client = MlflowClient(tracking_uri=self._uri)
            return self._open(run)
        except MlflowException as error:
            raise ConfigError(f"mlflow = {self._uri}: {str(error).splitlines()[0]}") from error

    def _open(self, run: TrackedRun) -> TrackerState:
        known = self._client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known else self._client.create_experiment(self._experiment)
        found = self._find(experiment, run)
        if found is None:
            started = _milliseconds(run.started)
            found = self._client.create_run(experiment, start_time=started, run_name=run.name, tags=run.tags)
        else:
            self._client.update_run(found.info.run_id, status="RUNNING")
            for name, value in run.tags.items():
                self._client.set_tag(found.info.run_id, name, value)
        self.run_id = found.info.run_id
        self._log_parameters(run, found.data.params)
        last_steps = {metric.key: metric.step for metric in found.data._metric_objs}
        return TrackerState(last_steps=last_steps | self._text_steps())

    def send(self, points: Sequence[Point], texts: Sequence[Text]) -> None:
        """As `Tracker.send`."""
        from mlflow.entities import Metric

        metrics = [Metric(p.name, p.value, _milliseconds(p.t), p.step) for p in points]
        for i in range(0, len(metrics), METRICS):
            self._client.log_batch(self.run_id, metrics=metrics[i : i + METRICS])
        for text in texts:
            folder, _, index = text.name.partition("/")
            self._client.log_text(self.run_id, text.text, f"{folder}/step-{text.step:08d}-{int(index):03d}.txt")

    def take_back(self, generation: int, step: int) -> None:
        """MLflow cannot remove a metric's value."""

    def close(self, ending: Ending, t: float) -> None:
        """As `Tracker.close`."""
        self._client.set_terminated(self.run_id, _STATUS[ending], end_time=_milliseconds(t))

    def _find(self, experiment: str, run: TrackedRun) -> Any:
        """Job names, unlike URIs, hold no quotes."""
        wanted = f"tags.`convoy.job` = '{run.job}' and tags.`convoy.branch` = '{run.branch}'"
        runs = self._client.search_runs([experiment], wanted, order_by=["attributes.start_time ASC"])
        return next((found for found in runs if found.data.tags.get("convoy.uri") == run.uri), None)

    def _log_parameters(self, run: TrackedRun, known: dict[str, str]) -> None:
        """Those it has keep their first value, which MLflow lets nobody change."""
        from mlflow.entities import Param

        leaves = {name: str(value)[:VALUE] for name, value in flatten(run.parameters)}
        params = [Param(name, value) for name, value in leaves.items() if name not in known]
        for i in range(0, len(params), PARAMETERS):
            self._client.log_batch(self.run_id, params=params[i : i + PARAMETERS])

    def _text_steps(self) -> dict[str, int]:
        steps: dict[str, int] = {}
        for artifact in self._client.list_artifacts(self.run_id, "samples"):
            _, step, index = artifact.path.removesuffix(".txt").rsplit("-", 2)
            name = f"samples/{int(index)}"
            steps[name] = max(int(step), steps.get(name, -1))
        return steps


def _milliseconds(t: float) -> int:
    return int(1000 * t)
