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
        # Metaflow refuses this itself, but only beside a decorator of the name `parallel`.
        raise ConfigError(f"step {step}: @catch beside @convoy_gang: Metaflow runs no such step on Kubernetes")
    _check_gpus(step, nproc_per_node, decorators)


def _check_count(step: str, asked: Any) -> None:
    if asked is None:
        return
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise ConfigError(f"step {step}: nproc_per_node = {asked!r} of @convoy_gang: must be a whole number from 1 on")


def _check_gpus(step: str, asked: int | None, decorators: Sequence[Any]) -> None:
    """The step's own request is all that it will see of a machine's GPUs."""
    found = {d.name: _number(d.attributes.get("gpu")) for d in decorators if d.name in COMPUTE}
    gpus = max(found.values(), default=0)
    if asked is not None and 0 < gpus < asked:
        (name, *_) = [name for name, count in found.items() if count == gpus]
        raise ConfigError(
            f"step {step}: nproc_per_node = {asked} of @convoy_gang: @{name} asks for {gpus} GPU"
            f"{'s' if gpus > 1 else ''}, and each worker needs one of its own"
        )


def _number(value: Any) -> int:
    try:
        return int(value or 0)
    except (TypeError, ValueError):
        return 0
