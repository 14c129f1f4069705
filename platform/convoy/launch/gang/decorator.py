"""What is checked of a step with `@convoy_gang` before anything starts. Imports no metaflow."""

from collections.abc import Sequence
from typing import Any

from convoy.config.errors import ConfigError
from convoy.launch.parse import say_and_exit

COMPUTE = ("batch", "kubernetes", "resources")


def check_or_exit(step: str, nproc_per_node: Any, decorators: Sequence[Any]) -> None:
    """As `check_step`: one line on stderr, exit code 2."""
    try:
        check_step(step, nproc_per_node, decorators)
    except ConfigError as error:
        say_and_exit(error)


def check_step(step: str, nproc_per_node: Any, decorators: Sequence[Any]) -> None:
    """Raise ConfigError for a step that cannot work. decorators: all of the step's, Metaflow's own objects."""
    _check_count(step, nproc_per_node)
    others = [d.name for d in decorators if getattr(d, "IS_PARALLEL", False)]
    for name in others:
        if name not in ("convoy_gang", "parallel"):
            raise ConfigError(f"step {step}: @{name} beside @convoy_gang: both start the workers; use one of them")
    names = {d.name for d in decorators}
    if {"catch", "kubernetes"} <= names:
        # Metaflow refuses this itself, but only next to a decorator of the name `parallel`.
        raise ConfigError(f"step {step}: @catch beside @convoy_gang: Metaflow runs no such step on Kubernetes")
    _check_gpus(step, nproc_per_node, decorators)


def _check_count(step: str, nproc_per_node: Any) -> None:
    if nproc_per_node is None:
        return
    if isinstance(nproc_per_node, bool) or not isinstance(nproc_per_node, int) or nproc_per_node < 1:
        raise ConfigError(
            f"step {step}: nproc_per_node = {nproc_per_node!r} of @convoy_gang: must be a whole number from 1 on"
        )


def _check_gpus(step: str, nproc_per_node: int | None, decorators: Sequence[Any]) -> None:
    """The step's own request is all that it will see of a machine's GPUs."""
    requested_gpus = {d.name: _number(d.attributes.get("gpu")) for d in decorators if d.name in COMPUTE}
    gpus = max(requested_gpus.values(), default=0)
    if nproc_per_node is not None and 0 < gpus < nproc_per_node:
        (name, *_) = [name for name, count in requested_gpus.items() if count == gpus]
        raise ConfigError(
            f"step {step}: nproc_per_node = {nproc_per_node} of @convoy_gang: @{name} asks for {gpus} GPU"
            f"{'s' if gpus > 1 else ''}, and each worker needs one of its own"
        )


def _number(value: Any) -> int:
    try:
        return int(value or 0)
    except (TypeError, ValueError):
        return 0
