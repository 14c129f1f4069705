"""A run of a flow: as a process of this machine, `python FLOW ... run ...`, and as Metaflow's Client API knows it.

metaflow is imported when it is queried.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from convoy.launch.checks.host import interpreter_path
from convoy.launch.parse import RUN
from convoy.launch.reruns.policy import FailedTask

PATIENCE_SECONDS = 60.0
"""Metaflow ends its tasks, and keeps their logs, when it is interrupted: so long it may take."""


@dataclass(frozen=True)
class RunIdentity:
    """What a run is called, and where Metaflow keeps what it knows of it."""

    run: str
    """Pathspec."""
    metadata: str
    """Metaflow's name of its metadata provider and place, such as `local@/home/me/.metaflow`."""


class FlowProcess:
    """Use as a context: leaving it leaves no process behind. What the run prints goes where this process prints."""

    def __init__(self, flow: Path, before: Sequence[str], after: Sequence[str]) -> None:
        """before, after: words around `run`."""
        self._folder = TemporaryDirectory(prefix="convoy-run-")
        self._attributes = Path(self._folder.name) / "run.json"
        runner_words = ["--runner-attribute-file", str(self._attributes)]
        self._command = [interpreter_path(), str(flow), *before, RUN, *after, *runner_words]
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> "FlowProcess":
        # A group of its own: Ctrl-C in a terminal is for this process to pass on, once.
        self._process = subprocess.Popen(self._command, process_group=0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.end(0.0)
        self._folder.cleanup()

    def wait(self, seconds: float) -> int | None:
        """The exit code once it has ended, minus the signal's number if by one; None: not within `seconds`."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    @property
    def identity(self) -> RunIdentity | None:
        """None: the run was not made, or not yet."""
        try:
            attributes = json.loads(self._attributes.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return RunIdentity(f"{attributes['flow_name']}/{attributes['run_id']}", attributes["metadata"])

    def interrupt(self) -> None:
        """Have Metaflow end the run, and its tasks wherever they are.

        Every process gets the signal, as after Ctrl-C in a terminal. Metaflow does not pass a signal on to the
        processes that watch its AWS Batch or Kubernetes jobs: it kills them after 5 s, and the jobs continue to run.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGINT)

    def end(self, patience_seconds: float = PATIENCE_SECONDS) -> int:
        """The same, and see to it that no process of the run is left on this machine; the exit code."""
        if patience_seconds > 0:
            self.interrupt()
            self.wait(patience_seconds)
        # Also what the launcher left behind: Metaflow's local gangs outlive their first node.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()


LOOK_AT_TASKS = 8
"""Of a gang's tasks, all of which fail with the same message, so many are looked at."""


@dataclass(frozen=True)
class UnfinishedGang:
    """A step that waits for its gang, or has one."""

    step: str
    failed: float
    """Unix time at which an attempt of it last failed on a node; 0: none did."""


class ClientRun:
    """One run. What Metaflow does not know, or does not answer, is taken for not there."""

    def __init__(self, identity: RunIdentity) -> None:
        from metaflow import metadata, namespace

        namespace(None)
        with _ignore_errors():
            metadata(identity.metadata)
        self._run = identity.run
        self._first: Any = None
        """The task of the first step, once it has ended: what it kept never changes."""
        self._root: str | None = None
        self._gangs: list[str] | None = None

    def root(self) -> str | None:
        """Where the configuration of the run has its jobs; None: it is not known, or not yet."""
        with _ignore_errors():
            if self._first is None and (first := self._ended_start()) is not None:
                config = first["config"].data if "config" in first else None
                self._root = config.get("root") if isinstance(config, dict) else None
                self._first = first
        return self._root

    def due_gangs(self) -> list[UnfinishedGang] | None:
        """Steps with a gang that were reached, and of which no node's task has succeeded. None: nothing is known."""
        with _ignore_errors():
            return [due for step in self._gang_steps() for due in self._due(step)]
        return None

    def failed_task(self) -> FailedTask:
        """The step that failed, and the message it failed with."""
        with _ignore_errors():
            return next(self._failures(), FailedTask())
        return FailedTask()

    def _failures(self) -> Iterator[FailedTask]:
        from metaflow import Run

        for step in Run(self._run):
            for task in _some_tasks(step):
                error = task.exception
                if error is not None:
                    yield FailedTask(step.id, getattr(error, "exception", None) or str(error))

    def _due(self, step: str) -> list[UnfinishedGang]:
        from metaflow import Step
        from metaflow.exception import MetaflowNotFound

        try:
            tasks = _some_tasks(Step(f"{self._run}/{step}"))
        except MetaflowNotFound:
            return []
        if not tasks or any(task.finished for task in tasks):
            return []
        attempt_ends = [m.created_at for task in tasks for m in task.metadata if m.name == "attempt_ok"]
        return [UnfinishedGang(step, max(attempt_ends, default=0) / 1000)]

    def _gang_steps(self) -> list[str]:
        """Of the flow's graph, those that are split over nodes. It never changes."""
        if self._gangs is None:
            self.root()
            graph = self._first["_graph_info"].data["steps"]
            self._gangs = [name for node in graph.values() if node["type"] == "split-parallel" for name in node["next"]]
        return self._gangs

    def _ended_start(self) -> Any:
        from metaflow import Step

        task = Step(f"{self._run}/start").task
        return task if task is not None and task.finished else None


def _some_tasks(step: Any) -> list[Any]:
    return list(itertools.islice(step, LOOK_AT_TASKS))


@contextlib.contextmanager
def _ignore_errors() -> Iterator[None]:
    """Metaflow raises what it likes where something is not there: its own, a store's, a network's."""
    with contextlib.suppress(Exception):
        yield
