"""Other tools that follow a job while it runs."""

from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import model_validator

from convoy.config.base import FrozenConfig
from convoy.config.errors import yaml_value

TrackerKind = Literal["mlflow", "wandb", "tensorboard"]


class TrackerConfig(FrozenConfig):
    """One tool, by one of these keys. What is missing while it does not answer is sent later."""

    mlflow: str | None = None
    """MLflow tracking URI; a password belongs in `$MLFLOW_TRACKING_USERNAME` and `$MLFLOW_TRACKING_PASSWORD`. The
    experiment is `$MLFLOW_EXPERIMENT_NAME`, by default `convoy`."""
    wandb: str | None = None
    """Project of Weights & Biases, or `ENTITY/PROJECT`; `$WANDB_API_KEY` and `$WANDB_MODE` are its own settings."""
    tensorboard: str | None = None
    """Folder of node 0's machine, in which each job has its own."""

    @model_validator(mode="before")
    @classmethod
    def _names_one_tool(cls, values: Any) -> Any:
        """Its target may hold a password, so no complaint shows it."""
        named = [str(name) for name, value in values.items() if value is not None] if isinstance(values, dict) else []
        if isinstance(values, dict) and (len(named) != 1 or named[0] not in get_args(TrackerKind)):
            known = ", ".join(get_args(TrackerKind))
            raise ValueError(f"{', '.join(named) or 'null'}: must be one tracker, of {known}, with its target")
        return values

    @model_validator(mode="after")
    def _has_target_without_password(self) -> "TrackerConfig":
        kind, target = self.kind, self.target
        if not target:
            raise ValueError(f"{kind} = '': must not be empty")
        if kind == "tensorboard" and "://" in target:
            raise ValueError(f"tensorboard = {yaml_value(target)}: must be a folder")
        if kind == "mlflow" and _has_password(target):
            raise ValueError(
                "mlflow: must be a URI without a password, which would be kept with the run; set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return self

    @property
    def kind(self) -> TrackerKind:
        """Which tool."""
        return "mlflow" if self.mlflow is not None else "wandb" if self.wandb is not None else "tensorboard"

    @property
    def target(self) -> str:
        """Where it is."""
        return str(getattr(self, self.kind))


def _has_password(uri: str) -> bool:
    """Also one with a character that ends the host's part of a URI, such as a slash: what precedes it is no port."""
    try:
        parts = urlsplit(uri)
        _ = parts.port
        return parts.password is not None
    except ValueError:
        return "@" in uri
