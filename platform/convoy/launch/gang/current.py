"""`current.convoy` of a step with `@convoy_gang`: what its body calls, on every node alike."""

import importlib.machinery
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.storage.uri import shared_stores

Json = dict[str, Any]


class CurrentConvoy:
    """Each method runs this node's part of the gang, and returns when the whole gang has ended well.

    It raises Metaflow's exception with the first cause, its node and rank and that rank's last lines. Under `@retry`
    the next attempt continues the job. A worker that fails while all nodes live is replaced in place, and costs no
    retry. A step may run several gangs, one after the other; all its nodes run the same ones.
    """

    def __init__(self, nproc_per_node: int | None, flow: Any, retries: int = 0) -> None:
        self.retries = retries
        """How often Metaflow tries the step again in this run, after its first attempt."""
        self._nproc_per_node = nproc_per_node
        self._flow = flow
        self._calls = 0

    def train(
        self,
        config: RunConfig | Mapping[str, Any] | str | Path,
        *,
        job: str | None = None,
        data: Json | None = None,
        plan: Json | None = None,
    ) -> str:
        """Train as Convoy does; the job's name.

        config: as in `configs/train/`: keys that differ from the default, or a YAML file. How many nodes there are,
        `num_parallel` says. job: to go on with, or to begin; None: one of this run's own, named after run and step.
        data: what `convoy.launch.steps.prepare_data` gave in an earlier step, before expensive machines were up; None:
        node 0 prepares it now. plan: what `settle` there gave; None: node 0 plans it for its card.
        """
        from convoy.launch.gang.run import train

        current, settled = self._settled(config)
        name = job or self._job(current)
        train(settled, name, data, plan, current, self._calls, self._nproc_per_node)
        return name

    def run(
        self,
        entrypoint: str | Path,
        args: Sequence[object] = (),
        *,
        job: str | None = None,
        config: RunConfig | Mapping[str, Any] | str | Path | None = None,
        hang_seconds: float = 600.0,
        exit_seconds: float = 35.0,
    ) -> str:
        """Run a script on each rank, as torchrun would: `python entrypoint args…` with RANK, WORLD_SIZE, LOCAL_RANK,
        MASTER_ADDR and so on in its environment. The job's name.

        entrypoint: a file that ends in `.py`, from the working directory or from the flow's; else the name of a module.
        hang_seconds: once it calls `convoy.script.progress`, it may take so long from one call to the next. job: as in
        `train`. config: a `root`, `notices`, `checkpoint.store` other than by default.
        exit_seconds: after its last line, the script's non-daemon threads and `atexit` handlers may take as long as
        they need while they make progress. A rank that makes none for so long is ended, with the script's own exit
        code. Progress is 5 % of a core, or 32 KiB/s read or written, by the rank and the processes that it started.
        While hardly anything is read or written, the use of a core counts for at most 20 times `exit_seconds`. A rank
        whose script succeeded may also wait for ranks that still make progress.
        """
        from convoy.gang.task import Script
        from convoy.launch.gang.run import run_script
        from convoy.launch.steps import plain_errors

        current, settled = self._settled({} if config is None else config)
        with plain_errors():
            script = Script(
                entrypoint=find_entrypoint(str(entrypoint), script_folders()),
                args=tuple(str(arg) for arg in args),
                hang_seconds=_check_seconds("hang_seconds", hang_seconds),
                exit_seconds=_check_seconds("exit_seconds", exit_seconds),
            )
        name = job or self._job(current)
        run_script(settled, name, script, current, self._calls, self._nproc_per_node)
        return name

    def _settled(self, config: Any) -> tuple[Any, RunConfig]:
        from metaflow import current

        from convoy.launch.steps import plain_errors

        self._calls += 1
        task: Any = current  # decorators give it what it has
        with plain_errors():
            return task, gang_config(config, task.parallel.num_nodes, os.environ)

    def _job(self, current: Any) -> str:
        """One for each gang of a run: of each step, of each branch of a foreach around it, and of each call."""
        from convoy.launch.checks.preflight import named_job
        from convoy.launch.steps import plain_errors

        with plain_errors():
            named = named_job(None, current.tags)
        if named is not None and self._calls <= 1:
            return named
        # The last frame is that of the gang's own nodes.
        branch = [str(frame[0]) for frame in (self._flow.foreach_stack() or [])[:-1]]
        call = [] if self._calls <= 1 else [f"call{self._calls}"]
        return "-".join([current.flow_name, str(current.run_id), current.step_name, *branch, *call])


def gang_config(config: Any, nodes: int, environment: Mapping[str, str]) -> RunConfig:
    """The whole configuration of a gang of so many nodes. Raises ConfigError."""
    from convoy.config.loader import default_root
    from convoy.launch.gang.node import on_one_host

    resolved = _resolve_config(config)
    if resolved.root is None:
        if not on_one_host(environment) and "CONVOY_ROOT" not in environment:
            raise ConfigError(f"root = null: must be {shared_stores()} or a folder that every machine of the gang sees")
        resolved = resolved.model_copy(update={"root": default_root()})
    return resolved.model_copy(update={"cluster": resolved.cluster.model_copy(update={"nodes": nodes})})


def _resolve_config(config: Any) -> RunConfig:
    from convoy.config.loader import expand_shorthands, read_run, resolve

    if isinstance(config, RunConfig):
        return config
    if isinstance(config, str | Path):
        try:
            text = Path(config).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"config = {config}: cannot read it: {error.strerror}") from None
        return resolve(read_run(text), {})
    return resolve(expand_shorthands(_config_dict(config)), {})


def _config_dict(config: Any) -> Json:
    if hasattr(config, "to_dict"):  # Metaflow's own type of a Config's value
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise ConfigError(f"config: must be a mapping of keys to values or a YAML file, not {type(config).__name__}")
    return dict(config)


def script_folders() -> list[Path]:
    """Where a script is looked for: the working directory, and the flow's file's."""
    return [Path.cwd(), Path(sys.argv[0]).absolute().parent]


def find_entrypoint(entrypoint: str, where: Sequence[Path]) -> str:
    """The script's whole path, or the module's name. Raises ConfigError if there is none."""
    if entrypoint.endswith(".py"):
        for folder in where:
            file = folder / entrypoint
            if file.is_file():
                return str(file)
        looked = " or ".join(dict.fromkeys(str(folder) for folder in where))
        raise ConfigError(f"entrypoint = {entrypoint}: no such file, from {looked}")
    package = entrypoint.partition(".")[0]
    # Workers find modules in the working directory and on PYTHONPATH, not next to the flow's file.
    if importlib.machinery.PathFinder.find_spec(package, [str(where[0]), *sys.path[1:]]) is None:
        raise ConfigError(f"entrypoint = {entrypoint}: must be a file that ends in .py, or a module on the Python path")
    return entrypoint


def _check_seconds(name: str, seconds: float) -> float:
    if not 0 < seconds < math.inf:
        raise ConfigError(f"{name} = {seconds:g}: must be a finite number of seconds, more than 0")
    return seconds
