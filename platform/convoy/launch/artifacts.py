"""What a run leaves for the Client API, from its report."""

from typing import Any

from convoy.job.lineage import CommitRef
from convoy.job.record import is_exported, model_prefix
from convoy.report.train_report import Checkpoint, TrainReport
from convoy.storage import Store


def checkpoint_uri(report: TrainReport, store: Store) -> str | None:
    """The newest commit that counts, on the first tier that got it."""
    if not report.checkpoints:
        return None
    newest = report.checkpoints[-1]
    return f"{newest.tiers[0] or store.uri}/{_ref(newest).name}"


def model_uri(report: TrainReport, store: Store) -> str | None:
    """The exported folder of the newest commit; None where the model was not exported."""
    if not report.checkpoints:
        return None
    newest = _ref(report.checkpoints[-1])
    return f"{store.uri}/{model_prefix(newest)}".rstrip("/") if is_exported(store, newest) else None


def metrics(report: TrainReport) -> dict[str, Any]:
    """The headline figures as plain data; None where a figure is not known."""
    first, last = report.validations[0] if report.validations else None, None
    last = report.validations[-1] if report.validations else None
    return {
        "outcome": report.outcome.state,
        "reason": report.outcome.reason,
        "step": report.step,
        "loss": last.loss if last else None,
        "bits_per_byte": last.bits_per_byte if last else None,
        "initial_loss": first.loss if first else None,
        "initial_bits_per_byte": first.bits_per_byte if first else None,
        "tokens_per_second": report.tokens_per_second.model_dump() if report.tokens_per_second else None,
        "skipped_steps": report.skipped_steps,
        "wall_seconds": report.wall_seconds,
        "goodput": report.goodput.share if report.goodput else None,
    }


def incidents(report: TrainReport) -> list[dict[str, Any]]:
    """What went wrong and how the job went on, oldest first, as plain data: the fields of `report.Incident`."""
    return [incident.model_dump(mode="json") for incident in report.incidents]


def _ref(checkpoint: Checkpoint) -> CommitRef:
    return CommitRef(generation=checkpoint.generation, step=checkpoint.step)
