"""The body of a step with `@convoy_gang`: Convoy's training, or a user's own script, as one node's part of the gang."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from convoy.config.json_text import parse_json
from convoy.config.run import RunConfig, World, check_ranks
from convoy.gang.rendezvous import marked_live
from convoy.gang.task import Node, Script, Task
from convoy.job.generations import FormationError, read_refusal
from convoy.job.record import SCRIPT_DATA, job_store, read_checked_record
from convoy.launch.checks.compatibility import check_budget, check_run
from convoy.launch.checks.host import local_gpus
from convoy.launch.gang.node import formation_name, live_card_task, this_node
from convoy.launch.gang.step import Draw
from convoy.launch.steps import plain_errors, prepare_data, tag_run
from convoy.storage import ObjectMissing, Store, StoreUnavailable, is_shared, open_store

Json = dict[str, Any]

REFUSE_SECONDS = 5.0
"""To let the other nodes know that nothing comes of the gang: no failed step waits for a store that hangs."""

WAIT_SECONDS = 6 * 3600.0
"""For node 0 to read and tokenise a corpus. Where Metaflow runs a gang, it ends with node 0's task."""

POLL_SECONDS = 0.5


def train(
    config: RunConfig,
    job: str,
    data: Json | None,
    plan: Json | None,
    current: Any,
    call: int,
    nproc_per_node: int | None,
) -> None:
    """Train as configured. Fails with a message that names the first cause.

    data: what `prepare_data` gave in an earlier step; None: node 0 prepares it now, and the others wait. plan: what
    `settle` gave; None: node 0 makes it for its card. call: which gang of this task it is. nproc_per_node: workers;
    None: as configured.
    """
    from convoy.data.manifest import DataDamaged

    with _node_failure_scope(config, job, current, call, nproc_per_node, DataDamaged) as node:
        check_run(config)
        check_budget(config)
        check_ranks(config, World(node.nodes, node.nproc_per_node))
        store = job_store(str(config.root), job, config)
        with _marked_preparing(config, job, store, node, data):
            if data is None:
                data = prepare_on_node_0(store, node, lambda: prepare_data(config.model_dump(mode="json"), job))
            _fetch_data(config, data)
        _tag_and_run(_training_task(config, job, data), node, current, plan)


def run_script(
    config: RunConfig, job: str, script: Script, current: Any, call: int, nproc_per_node: int | None
) -> None:
    """Run the user's script on all ranks. Fails as `train`. Of the configuration the root, the notices, the store, the
    threads per rank and the card's pace count."""
    from convoy.launch.pricing import machine_rent

    with _node_failure_scope(config, job, current, call, nproc_per_node) as node:
        named = config.model.model_copy(update={"name": script.name})  # by which a job is shown
        task = Task(
            config=config.model_copy(update={"model": named}),
            job=job,
            root=str(config.root),
            data_id="",
            fingerprint=SCRIPT_DATA,
            usd_per_hour=None,
            rent=machine_rent(config),
            script=script,
        )
        _tag_and_run(task, node, current)


@contextlib.contextmanager
def _marked_preparing(config: RunConfig, job: str, store: Store, node: Node, data: Json | None) -> Iterator[None]:
    """On node 0 the job is marked as running: who waits for a gang sees that it has its machine."""
    if node.index != 0:
        yield
        return
    if data is not None:
        read_checked_record(store, config, data["fingerprint"])  # no mark where the root is not mounted
    with marked_live(store, job, node.run, preparing=True):
        yield


def _tag_and_run(task: Task, node: Node, current: Any, plan: Json | None = None) -> None:
    from convoy.launch.gang.step import run_gang_step

    if node.index == 0:
        tag_run(task.job, current)  # here too: a resumed run does not run its first step again
        if hasattr(current, "card"):
            _print_card_place(live_card_task(current))
    run_gang_step(task, node, _card_drawer(current), live_card_task(current), plan)


@cache  # a step may run several gangs, which have one card
def _print_card_place(task: str) -> None:
    from convoy.launch.gang.watchers import card_place

    print(f"live card: {card_place(task)}", flush=True)


@contextlib.contextmanager
def _node_failure_scope(
    config: RunConfig, job: str, current: Any, call: int, nproc_per_node: int | None, *plainly_ended: type[Exception]
) -> Iterator[Node]:
    """The node of this task, whose failures of these kinds end it plainly, and reach the other nodes."""
    from convoy.gang.messages import PreemptedError
    from convoy.job.generations import CommitsLostError, FormationError, GenerationLostError
    from convoy.launch.gang.step import GangFailedError

    unformed = (GenerationLostError, CommitsLostError, FormationError, TimeoutError)
    with plain_errors(GangFailedError, PreemptedError, *unformed, *plainly_ended):
        with _failures_reach_other_nodes(config, job, current, call):
            yield this_node(config, current, call, nproc_per_node, local_gpus())


@contextlib.contextmanager
def _failures_reach_other_nodes(config: RunConfig, job: str, current: Any, call: int) -> Iterator[None]:
    """Whatever keeps node 0 from forming the generation ends the other nodes too, which wait for it, or come late; and
    what keeps another node from joining ends node 0."""
    from convoy.gang.async_call import BackgroundCall
    from convoy.gang.messages import PreemptedError
    from convoy.job.generations import FormationError, refuse_formation
    from convoy.launch.gang.step import GangFailedError

    try:
        yield
    except Exception as error:
        index = current.parallel.node_index
        # What comes from node 0, or of the gang, it knows.
        if index == 0 or not isinstance(error, FormationError | GangFailedError | PreemptedError):
            store, named = job_store(str(config.root), job, config), formation_name(current, call)
            reason = str(error) if index == 0 else f"node {index}: {error}"
            refusal = BackgroundCall("the refusal", lambda: refuse_formation(store, named, reason), REFUSE_SECONDS)
            with contextlib.suppress(StoreUnavailable):
                refusal.result()
        raise


def _card_drawer(current: Any) -> Draw:
    """Draws on the task's card, where it has one."""
    card = getattr(current, "card", None)
    if card is None:
        return lambda page, how: None
    from metaflow_extensions.convoy.plugins.cards.convoy.components import draw, show

    return lambda page, how: show(card, page) if how == "show" else draw(card, page, force=how == "write")


def _fetch_data(config: RunConfig, data: Json) -> None:
    """Bring a remote root's shards to this node, once for all its ranks, and before any of them waits for others."""
    from convoy.data.local_cache import ensure_local_data
    from convoy.data.manifest import read_manifest

    store = open_store(str(config.root), config.checkpoint.store)
    if is_shared(store.uri) and data["id"]:
        manifest = read_manifest(store, data["id"])
        if manifest is not None:
            ensure_local_data(manifest, store, config.data)


def _training_task(config: RunConfig, job: str, data: Json) -> Task:
    from convoy.launch.checks.preflight import read_spent_seconds
    from convoy.launch.pricing import gang_usd_per_hour, machine_rent

    assert config.root is not None
    limited = config.budget.max_hours is not None or config.budget.max_cost_usd is not None
    return Task(
        config=config,
        job=job,
        root=config.root,
        data_id=data["id"],
        fingerprint=data["fingerprint"],
        usd_per_hour=gang_usd_per_hour(config),
        rent=machine_rent(config),
        spent_seconds=read_spent_seconds(job_store(config.root, job, config)) if limited else 0.0,
        has_record=True,
    )


def prepare_on_node_0(store: Store, node: Node, prepare: Callable[[], Json], seconds: float = WAIT_SECONDS) -> Json:
    """What `prepare` gives on node 0, on all nodes. Raises what it raises, on the others FormationError with the
    text of that, and TimeoutError.

    store: the job's.
    """
    name = f"prepared/{node.formation}.json"
    if node.index == 0:
        made = prepare()
        store.write(name, json.dumps(made).encode())
        return made
    deadline, parent = time.monotonic() + seconds, os.getppid()
    while time.monotonic() < deadline:
        try:
            prepared: Json = parse_json(store.read(name))
            return prepared
        except ObjectMissing:
            pass
        refused = read_refusal(store, node.formation)
        if refused is not None:
            raise FormationError(refused)
        if node.shares_host and os.getppid() != parent:  # there node 0's process has started this one
            raise FormationError("node 0 ended before it had prepared the data")
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"node 0 prepared no data within {seconds:.0f} s")
