"""What Metaflow's Client API has of a run that is under way, or has ended. Imports metaflow when it is asked."""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from convoy.launch.restarts.flow_process import Identity
from convoy.launch.restarts.run_result import FailedTask

LOOK_AT_TASKS = 8
"""Of a gang's tasks, all of which fail with the same message, so many are looked at."""


@dataclass(frozen=True)
class DueGang:
    """A step that waits for its gang, or has one."""

    step: str
    failed: float
    """Unix time at which an attempt of it last failed on a node; 0: none did."""


class ClientRun:
    """One run. What Metaflow does not know, or does not answer, is taken for not there."""

    def __init__(self, identity: Identity) -> None:
        from metaflow import metadata, namespace

        namespace(None)
        with _not_there():
            metadata(identity.metadata)
        self._run = identity.run
        self._first: Any = None
        """The task of the first step, once it has ended: what it kept never changes."""
        self._root: str | None = None
        self._gangs: list[str] | None = None

    def root(self) -> str | None:
        """Where the configuration of the run has its jobs; None: it is not known, or not yet."""
        with _not_there():
            if self._first is None and (first := self._ended_start()) is not None:
                config = first["config"].data if "config" in first else None
                self._root = config.get("root") if isinstance(config, dict) else None
                self._first = first
        return self._root

    def due_gangs(self) -> list[DueGang] | None:
        """Steps with a gang that were reached, and of which no node's task has succeeded. None: nothing is known."""
        with _not_there():
            return [due for step in self._gang_steps() for due in self._due(step)]
        return None

    def failed_task(self) -> FailedTask:
        """The step that failed, and the message it failed with."""
        with _not_there():
            return next(self._failures(), FailedTask())
        return FailedTask()

    def _failures(self) -> Iterator[FailedTask]:
        from metaflow import Run

        for step in Run(self._run):
            for task in _some(step):
                error = task.exception
                if error is not None:
                    yield FailedTask(step.id, getattr(error, "exception", None) or str(error))

    def _due(self, step: str) -> list[DueGang]:
        from metaflow import Step
        from metaflow.exception import MetaflowNotFound

        try:
            tasks = _some(Step(f"{self._run}/{step}"))
        except MetaflowNotFound:
            return []
        if not tasks or any(task.finished for task in tasks):
            return []
        attempt_ends = [m.created_at for task in tasks for m in task.metadata if m.name == "attempt_ok"]
        return [DueGang(step, max(attempt_ends, default=0) / 1000)]

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


def _some(step: Any) -> list[Any]:
    return list(itertools.islice(step, LOOK_AT_TASKS))


@contextlib.contextmanager
def _not_there() -> Iterator[None]:
    """Metaflow raises what it likes where something is not there: its own, a store's, a network's."""
    with contextlib.suppress(Exception):
        yield
