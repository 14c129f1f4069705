"""The bodies of the train flow's steps but the gang's. Artifacts between them are plain JSON data.

Every task of the flow imports this module, so what only one step needs is imported when that step runs.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.job.lineage import CommitRef
from convoy.job.record import ensure_record, is_exported, job_store, model_prefix
from convoy.launch.checks.preflight import JOB_TAG, named_job
from convoy.storage import Store, StoreUnavailable, open_store

if TYPE_CHECKING:
    from convoy.data.manifest import PreparedData
    from convoy.report.train_report import TrainReport


Json = dict[str, Any]


@dataclass(frozen=True)
class RunArtifacts:
    """What the join step keeps for the Client API."""

    checkpoint_uri: str | None
    model_uri: str | None
    metrics: Json
    incidents: list[Json]
    plan: Json
    config: Json
    """With `train.param_dtype` as the gang settled it."""


@contextlib.contextmanager
def plain_errors(*kinds: type[Exception]) -> Iterator[None]:
    """What a user can mend, an outage, and these kinds end the task with their message, without a traceback.

    A kind may have a `headline` of its own, which distinguishes a preemption from a failure.
    """
    from metaflow.exception import MetaflowException

    try:
        yield
    except Exception as error:
        if not isinstance(error, (ConfigError, StoreUnavailable, *kinds)):
            raise
        failed = MetaflowException(str(error))
        failed.headline = getattr(error, "headline", "Convoy")
        raise failed from None


def settle(run_config: Any, overrides: Any, job_option: str | None, current: Any) -> tuple[Json, str, Json]:
    """The resolved configuration, the job's name, and the plan; tags the run with the job."""
    from convoy.launch.checks.compatibility import check_budget
    from convoy.launch.flow import flow_config
    from convoy.launch.plans import plan_safely
    from convoy.launch.pricing import settle_price_from_root

    with plain_errors():
        configured = flow_config({"run": run_config, "set": overrides})
        config = settle_price_from_root(configured)
        check_budget(config)
        job = named_job(job_option, current.tags) or f"{current.flow_name}-{current.run_id}"
    tag_run(job, current)
    # Planned as requested: a price that `settle_price_from_root` filled in would hide what other zones cost.
    return config.model_dump(mode="json"), job, plan_safely(configured).model_dump(mode="json")


def prepare_data(config_json: Json, job: str) -> Json:
    """Make or find the token shards; of a user's dataset nothing. Fails plainly, also if the job was started with
    other data."""
    from convoy.data.job_data import prepare_job_data

    config = RunConfig.model_validate(config_json)
    assert config.root is not None
    with plain_errors():
        data = prepare_job_data(config, open_store(config.root, config.checkpoint.store))
        # Made here, so that the gang can distinguish a new job from one whose root is not mounted where it runs.
        ensure_record(job_store(config.root, job, config), job, config, data.fingerprint)
    print(f"data of {config.data.build}" if data.prepared is None else _preparation_line(data.prepared))
    return {"id": data.id, "fingerprint": data.fingerprint}


def _preparation_line(manifest: "PreparedData") -> str:
    """What was prepared, and what was left out, in one line."""
    documents, text_bytes = sum(manifest.documents.values()), sum(manifest.text_bytes.values())
    train, held_out = manifest.tokens("train"), manifest.tokens("validation")
    parts = [f"data {manifest.id}: {train:,} tokens to train on, {held_out:,} held out"]
    if text_bytes:
        parts.append(f"{documents:,} documents of {text_bytes / 1e6:,.1f} MB")
    if manifest.skipped_files:
        parts.append(f"{manifest.skipped_files:,} files left out: not UTF-8")
    return ", ".join(parts)


def report(config_json: Json, job: str, current: Any, plan: Json | None = None) -> RunArtifacts:
    """Draw the final card, and gather what the Client API gives. plan: as the run's first step made it, for the
    one below the job may be another run's; None: there is no other."""
    from convoy.job.events.log import read_events
    from convoy.job.record import with_recorded_dtype
    from convoy.launch.plans import JobPlan, read_plan
    from convoy.report.fold import fold
    from convoy.report.pages.train import final_page
    from metaflow_extensions.convoy.plugins.cards.convoy.components import show

    config = RunConfig.model_validate(config_json)
    assert config.root is not None
    store = job_store(config.root, job, config)
    config = with_recorded_dtype(config, store)
    config_json = config.model_dump(mode="json")
    folded = fold(read_events(store), config.train.steps)
    checkpoint, model = artifact_uris(folded, store)
    places = {"Job": store.uri, "Checkpoint": checkpoint or "none", "Model": model or "not exported"}
    drawn_plan = JobPlan(store, config, plan or read_plan(store)).for_report(folded)
    show(current.card, final_page(folded, config_json, places, drawn_plan))  # written as the task ends
    incidents = [incident.model_dump(mode="json") for incident in folded.incidents]
    return RunArtifacts(checkpoint, model, metrics(folded), incidents, drawn_plan.model_dump(mode="json"), config_json)


def summary(job: str, metrics: Json, checkpoint: str | None, model: str | None) -> str:
    """The last lines a person sees in the terminal."""
    why = f": {metrics['reason']}" if metrics.get("reason") else ""
    lines = [f"job {job}: {metrics['outcome']} at step {metrics['step']}{why}"]
    before, after = metrics["initial_bits_per_byte"], metrics["bits_per_byte"]
    if before and after:
        lines.append(f"bits per byte {before:.3f} -> {after:.3f}, {after / before:.3f} of the start")
    lines.append(f"checkpoint {checkpoint or 'none'}")
    lines.append(f"model {model or 'not exported'}")
    return "\n".join(lines)


def tag_run(job: str, current: Any) -> None:
    """Have the run found by its job."""
    from metaflow import Run, namespace

    namespace(None)
    Run(f"{current.flow_name}/{current.run_id}").add_tag(f"{JOB_TAG}{job}")


def artifact_uris(report: "TrainReport", store: Store) -> tuple[str | None, str | None]:
    """The newest commit that counts, on the first tier that got it; and the folder that its model was exported to."""
    if not report.checkpoints:
        return None, None
    newest = report.checkpoints[-1]
    ref = CommitRef(generation=newest.generation, step=newest.step)
    model = f"{store.uri}/{model_prefix(ref)}".rstrip("/") if is_exported(store, ref) else None
    return f"{newest.tiers[0] or store.uri}/{ref.name}", model


def metrics(report: "TrainReport") -> Json:
    """The headline figures as plain data; None where a figure is not known."""
    first, last = (report.validations[0], report.validations[-1]) if report.validations else (None, None)
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
