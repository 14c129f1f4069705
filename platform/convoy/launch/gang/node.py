"""A step with `@convoy_gang`: checked before anything starts, and which node of which gang its task is at run time."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.gang.task import NOTICE_FILE, Node
from convoy.launch.checks.compatibility import world
from convoy.launch.parse import print_and_exit

COMPUTE = ("batch", "kubernetes", "resources")


def check_or_exit(step: str, nproc_per_node: Any, decorators: Sequence[Any]) -> None:
    """As `check_step`: one line on stderr, exit code 2."""
    try:
        check_step(step, nproc_per_node, decorators)
    except ConfigError as error:
        print_and_exit(error)


def check_step(step: str, nproc_per_node: Any, decorators: Sequence[Any]) -> None:
    """Raise ConfigError for a step that cannot work. decorators: all of the step's, Metaflow's own objects."""
    _check_nproc(step, nproc_per_node)
    others = [d.name for d in decorators if getattr(d, "IS_PARALLEL", False)]
    for name in others:
        if name not in ("convoy_gang", "parallel"):
            raise ConfigError(f"step {step}: @{name} next to @convoy_gang: both start the workers; use one of them")
    names = {d.name for d in decorators}
    if {"catch", "kubernetes"} <= names:
        # Metaflow refuses this itself, but only next to a decorator of the name `parallel`.
        raise ConfigError(f"step {step}: @catch next to @convoy_gang: Metaflow runs no such step on Kubernetes")
    _check_gpus(step, nproc_per_node, decorators)


def _check_nproc(step: str, nproc_per_node: Any) -> None:
    if nproc_per_node is None:
        return
    if isinstance(nproc_per_node, bool) or not isinstance(nproc_per_node, int) or nproc_per_node < 1:
        raise ConfigError(
            f"step {step}: nproc_per_node = {nproc_per_node!r} of @convoy_gang: must be a whole number from 1 on"
        )


def _check_gpus(step: str, nproc_per_node: int | None, decorators: Sequence[Any]) -> None:
    """The step's own request is all that it will see of a machine's GPUs."""
    requested_gpus = {d.name: _requested_gpus(d.attributes.get("gpu")) for d in decorators if d.name in COMPUTE}
    gpus = max(requested_gpus.values(), default=0)
    if nproc_per_node is not None and 0 < gpus < nproc_per_node:
        (name, *_) = [name for name, count in requested_gpus.items() if count == gpus]
        raise ConfigError(
            f"step {step}: nproc_per_node = {nproc_per_node} of @convoy_gang: @{name} asks for {gpus} GPU"
            f"{'s' if gpus > 1 else ''}, and each worker needs one of its own"
        )


def _requested_gpus(value: Any) -> int:
    try:
        return int(value or 0)
    except (TypeError, ValueError):
        return 0


def this_node(config: RunConfig, current: Any, call: int, nproc_per_node: int | None, gpus: int) -> Node:
    """The node of the running task.

    call: which gang of this task it is, from 1 on. nproc_per_node: as `@convoy_gang` has it. gpus: of this machine.
    Raises ConfigError for workers that do not fit.
    """
    gang = current.parallel
    shared = on_one_host(os.environ)
    nproc = workers_per_node(nproc_per_node, config, gang.num_nodes, gpus, shared=shared)
    return Node(
        index=gang.node_index,
        nodes=gang.num_nodes,
        nproc_per_node=nproc,
        main_host=gang.main_ip,
        run=f"{current.flow_name}/{current.run_id}",
        formation=formation_name(current, call),
        attempt=current.retry_count,
        retries=getattr(getattr(current, "convoy", None), "retries", 0),
        shares_host=shared,
        notice_file=Path(getattr(current, "spot_termination_notice", None) or NOTICE_FILE),
    )


def formation_name(current: Any, call: int) -> str:
    """Names this attempt of this step, the same on all nodes. call: which gang of the step it is, from 1 on."""
    named = f"{current.run_id}/{current.step_name}/{current.parallel.control_task_id}/{current.retry_count}"
    return named if call == 1 else f"{named}/{call}"


def live_card_task(current: Any) -> str:
    """Pathspec of node 0's task, whose card is the live one."""
    return f"{current.flow_name}/{current.run_id}/{current.step_name}/{current.parallel.control_task_id}"


def on_one_host(environment: Mapping[str, str]) -> bool:
    """Whether Metaflow runs all nodes as processes of this host. As its own `@parallel` decides it."""
    return environment.get("METAFLOW_RUNTIME_ENVIRONMENT", "local") == "local"


def workers_per_node(requested: int | None, config: RunConfig, nodes: int, gpus: int, *, shared: bool) -> int:
    """Workers of each node: as configured, else one for each GPU, or one. Raises ConfigError if they do not fit.

    requested: by `@convoy_gang`. gpus: of this machine. shared: all nodes are on it.
    """
    configured, on_machine = config.cluster.nproc_per_node, nodes if shared else 1
    if requested is not None and configured is not None and requested != configured:
        raise ConfigError(
            f"nproc_per_node = {requested} of @convoy_gang: cluster.nproc_per_node is {configured}; give one of them"
        )
    wanted = requested or configured
    if wanted is None and config.cluster.backend != "local":
        wanted = world(config).nproc_per_node
    if wanted is None:
        wanted = max(1, gpus // on_machine)
    if 0 < gpus < wanted * on_machine:
        machine = "this machine" if on_machine == 1 else f"the host of all {nodes} nodes"
        raise ConfigError(
            f"nproc_per_node = {wanted}: {machine} has {gpus} GPU{'s' if gpus > 1 else ''}, and each worker needs one "
            "of its own; set CUDA_VISIBLE_DEVICES= for the CPU"
        )
    return wanted
