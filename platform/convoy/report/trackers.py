"""The event log for other tools: TensorBoard and MLflow. Both are optional packages."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from convoy.config.errors import ConfigError, missing_extra
from convoy.job.events.registry import CheckpointSaved, Evaluated, Event, MemoryPeak, SampleText, StepDone
from convoy.report.analysis.lineage import events_on_branch, lineage

_MLFLOW_METRICS, _MLFLOW_PARAMETERS = 1000, 100
"""Per request; MLflow's REST API refuses more."""


def scalars(events: Sequence[Event]) -> Iterator[tuple[str, float, int, float]]:
    """(name, value, step, Unix time) of every measured number on the living branch, by time."""
    for event in events_on_branch(events, lineage(events)):
        for name, value in _scalars_by_name(event).items():
            yield name, value, event.step, event.t  # type: ignore[attr-defined]  # all kinds with numbers have a step


def to_tensorboard(events: Sequence[Event], folder: str | Path) -> int:
    """Write a TensorBoard log into `folder`; gives the number of its scalars.

    Raises ConfigError where tensorboard is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event as TensorBoardEvent
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise ConfigError(missing_extra(error.name or "tensorboard", "tensorboard")) from error
    writer = EventFileWriter(str(folder))
    n = 0
    try:
        for name, value, step, t in scalars(events):
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
            writer.add_event(TensorBoardEvent(wall_time=t, step=step, summary=summary))
            n += 1
    finally:
        writer.close()
    return n


def to_mlflow(
    events: Sequence[Event],
    tracking_uri: str,
    experiment: str,
    run_name: str,
    parameters: Mapping[str, Any] | None = None,
) -> str:
    """Log the job as one finished MLflow run and give its id.

    parameters: the resolved configuration, nested; its leaves become parameters under dotted names.
    Raises ConfigError where mlflow is not installed, or does not take `tracking_uri`.
    """
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise ConfigError(missing_extra(error.name or "mlflow", "mlflow")) from error
    first, last = (extreme((e.t for e in events), default=0.0) for extreme in (min, max))
    try:
        client = MlflowClient(tracking_uri=tracking_uri)
        existing = client.get_experiment_by_name(experiment)
        experiment_id = existing.experiment_id if existing else client.create_experiment(experiment)
        created = client.create_run(experiment_id, start_time=_milliseconds(first), run_name=run_name)
        run_id: str = created.info.run_id
        _fill_run(client, run_id, events, parameters or {})
        client.set_terminated(run_id, end_time=_milliseconds(last))
    except MlflowException as error:
        raise ConfigError(f"tracking_uri = {tracking_uri}: {str(error).splitlines()[0]}") from error
    return run_id


def _fill_run(client: Any, run_id: str, events: Sequence[Event], parameters: Mapping[str, Any]) -> None:
    from mlflow.entities import Metric, Param

    metrics = [Metric(name, value, _milliseconds(t), step) for name, value, step, t in scalars(events)]
    for i in range(0, len(metrics), _MLFLOW_METRICS):
        client.log_batch(run_id, metrics=metrics[i : i + _MLFLOW_METRICS])
    params = [Param(name, str(value)) for name, value in flatten(parameters)]
    for i in range(0, len(params), _MLFLOW_PARAMETERS):
        client.log_batch(run_id, params=params[i : i + _MLFLOW_PARAMETERS])
    for i, sample in enumerate(e for e in events_on_branch(events, lineage(events)) if isinstance(e, SampleText)):
        client.log_text(run_id, sample.prompt + sample.text, f"samples/step-{sample.step:08d}-{i:03d}.txt")


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings under dotted names."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _scalars_by_name(event: Event) -> dict[str, float]:
    values: dict[str, float] = {}
    match event:
        case StepDone():
            values = {
                "train/loss": event.loss,
                "train/grad_norm": event.grad_norm,
                "train/learning_rate": event.lr,
                "train/step_seconds": event.seconds,
            }
            if event.seconds > 0:
                values["train/tokens_per_second"] = event.tokens / event.seconds
        case Evaluated():
            values = {"validation/loss": event.loss}
            if event.bits_per_byte is not None:
                values["validation/bits_per_byte"] = event.bits_per_byte
        case MemoryPeak(rank=rank) if rank is not None:
            values = {f"memory/peak_bytes_rank{rank}": float(event.bytes)}
        case CheckpointSaved():
            values = {
                "checkpoint/bytes": float(event.bytes),
                "checkpoint/seconds": event.seconds,
                "checkpoint/committed_seconds": event.committed_seconds,
            }
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _milliseconds(t: float) -> int:
    return int(1000 * t)
