"""Weights & Biases: one run per job and branch, online or offline as $WANDB_MODE says."""

import hashlib
from collections.abc import Sequence
from typing import Any

from convoy.report.trackers.points import Point, Text
from convoy.report.trackers.tracker import Ending, TrackedRun, TrackerState, missing_package

STEP = "step"
"""The metric that all others are drawn over: rows may come late, which W&B's own step does not allow."""

_TAG_LENGTH = 64
"""W&B refuses longer tags; what does not fit is in the run's configuration only."""


class WandbTracker:
    """Logs into the run whose id follows from the job's URI and branch."""

    takes_back = False

    def __init__(self, project: str) -> None:
        """project: `PROJECT` or `ENTITY/PROJECT`."""
        self._entity, _, self._project = project.rpartition("/")
        self._run: Any = None
        self._id = ""

    @property
    def place(self) -> str:
        """As `Tracker.place`."""
        return f"W&B run {self._project}/{self._id}"

    def open(self, run: TrackedRun) -> TrackerState:
        """As `Tracker.open`. An offline run cannot be asked what it has, nor can one on the server cheaply."""
        try:
            import wandb
        except ImportError as error:
            raise missing_package("wandb", error) from error
        self._id = run_id(run)
        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True, x_disable_meta=True
        )
        self._run = wandb.init(
            entity=self._entity or None,
            project=self._project,
            id=self._id,
            name=run.name,
            resume="allow",
            tags=[tag for tag in (f"job:{run.job}", f"run:{run.run}") if len(tag) <= _TAG_LENGTH],
            config={**run.parameters, "convoy": {name.partition(".")[2]: value for name, value in run.tags.items()}},
            settings=settings,
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        return TrackerState(knows_last_steps=False)

    def send(self, points: Sequence[Point], texts: Sequence[Text]) -> None:
        """As `Tracker.send`: wandb's own process keeps what its server does not take yet. One row per event."""
        rows: dict[tuple[int, float], dict[str, Any]] = {}
        for point in points:
            rows.setdefault((point.step, point.t), {})[point.name] = point.value
        for text in texts:
            rows.setdefault((text.step, text.t), {})[text.name] = text.text
        for (step, t), values in rows.items():
            self._run.log({STEP: step, "_timestamp": t, **values})

    def take_back(self, generation: int, step: int) -> None:
        """W&B cannot remove a row."""

    def close(self, ending: Ending, t: float) -> None:
        """As `Tracker.close`."""
        self._run.finish(exit_code=0 if ending == "finished" else 1)


def run_id(run: TrackedRun) -> str:
    """The same in every attempt of the job."""
    return hashlib.sha256(f"{run.uri}\n{run.branch}".encode()).hexdigest()[:16]
