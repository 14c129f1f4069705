"""What a tracker is: one run of one job in another tool, found again by whoever continues it."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from convoy.config.errors import ConfigError, missing_extra
from convoy.config.json_text import short_hash
from convoy.config.trackers import TrackerConfig
from convoy.report.trackers.points import LastSteps, Point, Text

Ending = Literal["finished", "failed", "interrupted"]
"""How what is tracked ended. An interrupted job is continued by another attempt."""

_ENDINGS: dict[str, Ending] = {"finished": "finished", "stopped": "finished", "failed": "failed"}


def ending_of(outcome: str) -> Ending:
    """By a gang's outcome; empty: its log has none."""
    return _ENDINGS.get(outcome, "interrupted")


class TrackedRun(BaseModel):
    """The job, as a tracker describes it."""

    model_config = ConfigDict(frozen=True)

    job: str
    uri: str
    """Of the job, which distinguishes jobs of one name under several roots."""
    branch: int = 0
    """Generation of the newest rewind; each one begins a new history, and so a new run in most trackers. 0: none."""
    run: str = ""
    """Metaflow pathspec of the run that trains now."""
    card: str = ""
    """URL of the job's card, or the command that shows it."""
    started: float = 0.0
    """Unix time."""
    parameters: dict[str, Any] = {}
    """The resolved configuration, nested."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.job} (rewound, generation {self.branch})" if self.branch else self.job

    @property
    def tags(self) -> dict[str, str]:
        """By which the run is found, and what it refers to."""
        tags = {"job": self.job, "uri": self.uri, "branch": str(self.branch), "run": self.run, "card": self.card}
        return {f"convoy.{name}": value for name, value in tags.items() if value}


class TrackerState(BaseModel):
    """What a tracker has already."""

    last_steps: LastSteps = {}
    resumptions: dict[int, int] = {}
    """Of a tracker that can take points back: the step from which each generation resumed, as far as it knows."""
    knows_last_steps: bool = True
    """False: it cannot be asked, and a position object in the job's store says it."""


class Tracker(Protocol):
    """A run in another tool. `open` is called first; a method that raises is called again in a new process."""

    takes_back: bool
    """Points of steps that a generation repeats can be removed."""

    @property
    def place(self) -> str:
        """Where the run is, for people."""

    def open(self, run: TrackedRun) -> TrackerState:
        """Find the run that was begun for this job, or begin it. Raises ConfigError where a package is missing."""

    def send(self, points: Sequence[Point], texts: Sequence[Text]) -> None:
        """Returns when the tool has them."""

    def take_back(self, generation: int, step: int) -> None:
        """Remove the points after `step`, from which a generation resumed."""

    def close(self, ending: Ending, t: float) -> None:
        """t: Unix time of the last event."""


def tracker_for(config: TrackerConfig, experiment: str | None = None) -> Tracker:
    """Not open yet. Imports only what belongs to this tracker. experiment: of MLflow; None: by default."""
    if config.mlflow is not None:
        from convoy.report.trackers.mlflow import MlflowTracker

        return MlflowTracker(config.mlflow, experiment)
    if config.wandb is not None:
        from convoy.report.trackers.wandb import WandbTracker

        return WandbTracker(config.wandb)
    from convoy.report.trackers.tensorboard import TensorBoardTracker

    return TensorBoardTracker(str(config.tensorboard))


def tracker_key(config: TrackerConfig) -> str:
    """Names a tracker in the job's store, without its address."""
    return f"{config.kind}-{short_hash(config.target)}"


def missing_package(kind: str, error: ImportError) -> ConfigError:
    """For a tracker whose package does not import."""
    return ConfigError(missing_extra(error.name or kind, kind))
