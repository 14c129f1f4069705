"""The bodies of the train flow's steps. Artifacts between them are plain JSON data.

Every task of the flow imports this module, so what only one step needs is imported when that step runs.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.job.record import ensure_record, job_store
from convoy.launch.host import local_gpus
from convoy.launch.preflight import JOB_TAG, named_job
from convoy.storage import StoreUnavailable, open_store

if TYPE_CHECKING:
    from convoy.data.manifest import PreparedData
    from convoy.gang.agent import Node, Task

Json = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What the join step keeps for the Client API."""

    checkpoint_uri: str | None
    model_uri: str | None
    metrics: Json


@contextlib.contextmanager
def plain_errors(*kinds: type[Exception]) -> Iterator[None]:
    """What a user can mend, an outage, and these kinds end the task with their message, without a traceback."""
    from metaflow.exception import MetaflowException

    try:
        yield
    except Exception as error:
        if not isinstance(error, (ConfigError, StoreUnavailable, *kinds)):
            raise
        failed = MetaflowException(str(error))
        failed.headline = "Convoy"
        raise failed from None


def settle(run_config: Any, overrides: Any, job_option: str | None, current: Any) -> tuple[Json, str]:
    """The resolved configuration and the job's name; tags the run with the job."""
    from convoy.launch.flow import flow_config

    with plain_errors():
        config = flow_config({"run": run_config, "set": overrides})
        job = named_job(job_option, current.tags) or f"{current.flow_name}-{current.run_id}"
    _tag_run(job, current)
    return config.model_dump(mode="json"), job


def prepare_data(config_json: Json, job: str) -> Json:
    """Make or find the token shards. Fails plainly, also if the job was started with other data."""
    from convoy.data.manifest import check_vocabulary, fingerprint
    from convoy.data.prepare import prepare

    config = RunConfig.model_validate(config_json)
    assert config.root is not None
    with plain_errors():
        manifest = prepare(config.data, open_store(config.root, config.checkpoint.store))
        check_vocabulary(manifest, config.model.vocab_size)
        found = fingerprint(manifest, config.data)
        # Made here, so that the gang can tell a new job from one whose root is not mounted where it runs.
        ensure_record(job_store(config.root, job, config), job, config, found)
    print(_told(manifest))
    return {"id": manifest.id, "fingerprint": found}


def _told(manifest: "PreparedData") -> str:
    """What was prepared, and what was left out, in one line."""
    documents, text_bytes = sum(manifest.documents.values()), sum(manifest.text_bytes.values())
    train, held_out = manifest.tokens("train"), manifest.tokens("validation")
    parts = [f"data {manifest.id}: {train:,} tokens to train on, {held_out:,} held out"]
    if text_bytes:
        parts.append(f"{documents:,} documents of {text_bytes / 1e6:,.1f} MB")
    if manifest.skipped_files:
        parts.append(f"{manifest.skipped_files:,} files left out: not UTF-8")
    return ", ".join(parts)


def train(config_json: Json, job: str, data: Json, current: Any) -> None:
    """One node's part of the gang; draws its card. Fails with a message that tells the first cause."""
    from convoy.data.local import DataDamaged
    from convoy.job.generations import CommitsLostError, FormationRefusedError, GenerationLostError
    from convoy.launch.gang_step import GangFailedError, run_gang_step
    from metaflow_extensions.convoy.plugins.cards.convoy.components import draw

    config = RunConfig.model_validate(config_json)
    node = _node(config, current)
    if node.index == 0 and current.origin_run_id is not None:
        _tag_run(job, current)  # a resumed run does not run its first step again
    live_task = f"{node.run}/{current.step_name}/{current.parallel.control_task_id}"
    plain = (GangFailedError, GenerationLostError, CommitsLostError, FormationRefusedError, TimeoutError, DataDamaged)
    with plain_errors(*plain):
        with _others_are_told(config, job, node):
            _fetch_data(config, data)
            if node.index == 0:
                print(f"live card: card view {live_task.partition('/')[2]}", flush=True)
            task = _task(config, job, data)
            run_gang_step(task, node, lambda page, force: draw(current.card, page, force), live_task)


@contextlib.contextmanager
def _others_are_told(config: RunConfig, job: str, node: "Node") -> Iterator[None]:
    """Whatever keeps node 0 from forming the generation ends the other nodes too, which wait for it."""
    from convoy.job.generations import refuse_formation

    try:
        yield
    except Exception as error:
        if node.index == 0:
            with contextlib.suppress(StoreUnavailable):
                refuse_formation(job_store(str(config.root), job, config), node.formation, str(error))
        raise


def report(config_json: Json, job: str, current: Any) -> Result:
    """Draw the final card, and gather what the Client API gives."""
    from convoy.events.log import read_events
    from convoy.launch import results
    from convoy.report.fold import fold
    from convoy.report.train_page import final_page
    from metaflow_extensions.convoy.plugins.cards.convoy.components import draw

    config = RunConfig.model_validate(config_json)
    assert config.root is not None
    store = job_store(config.root, job, config)
    folded = fold(read_events(store), config.train.steps)
    checkpoint, model = results.checkpoint_uri(folded, store), results.model_uri(folded, store)
    places = {"Job": store.uri, "Checkpoint": checkpoint or "none", "Model": model or "not exported"}
    draw(current.card, final_page(folded, config_json, places), False)
    return Result(checkpoint, model, results.metrics(folded))


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


def _fetch_data(config: RunConfig, data: Json) -> None:
    """Bring a remote root's shards to this node, once for all its ranks, and before any of them waits for others."""
    from convoy.data.local import open_data
    from convoy.data.manifest import read_manifest

    store = open_store(str(config.root), config.checkpoint.store)
    if store.uri.startswith("s3://"):
        manifest = read_manifest(store, data["id"])
        if manifest is not None:
            open_data(manifest, store, config.data)


def _task(config: RunConfig, job: str, data: Json) -> "Task":
    from convoy.gang.agent import Task
    from convoy.launch.preflight import spent_seconds
    from convoy.launch.support import gang_price

    assert config.root is not None
    limited = config.budget.max_hours is not None or config.budget.max_cost_usd is not None
    return Task(
        config=config,
        job=job,
        root=config.root,
        data_id=data["id"],
        fingerprint=data["fingerprint"],
        usd_per_hour=gang_price(config),
        spent_seconds=spent_seconds(job_store(config.root, job, config)) if limited else 0.0,
        known=True,
    )


def _node(config: RunConfig, current: Any) -> "Node":
    from convoy.gang.agent import Node
    from convoy.launch.support import world

    gang = current.parallel
    return Node(
        index=gang.node_index,
        nodes=gang.num_nodes,
        nproc_per_node=world(config, local_gpus()).nproc_per_node,
        main_host=gang.main_ip,
        run=f"{current.flow_name}/{current.run_id}",
        formation=f"{current.run_id}/{current.step_name}/{gang.control_task_id}/{current.retry_count}",
        attempt=current.retry_count,
        shares_host=config.cluster.backend == "local",
    )


def _tag_run(job: str, current: Any) -> None:
    from metaflow import Run, namespace

    namespace(None)
    Run(f"{current.flow_name}/{current.run_id}").add_tag(f"{JOB_TAG}{job}")
