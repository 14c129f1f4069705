"""Whoever follows a gang's event log from node 0, next to its live card: trackers, and who is notified."""

import os
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

from convoy.config.run import RunConfig
from convoy.config.trackers import TrackerConfig
from convoy.gang.agent import Gang
from convoy.gang.async_call import say
from convoy.gang.messages import GangOutcome
from convoy.gang.task import Node, Task
from convoy.launch.parse import continue_command
from convoy.report.notifications.message import Commands
from convoy.report.notifications.notifier import Notifier, Outbox, Subject
from convoy.report.notifications.send import check_target
from convoy.report.trackers.live import LiveTrackers
from convoy.report.trackers.tracker import TrackedRun, ending_of


class Watchers:
    """Follow the log while a `with` block runs. `end` and `join` have them finish; without these none is waited for."""

    def __init__(self, task: Task, node: Node, gang: Gang, live_task: str) -> None:
        """live_task: pathspec of node 0's task."""
        config = gang.config
        commands = Commands(continue_command(task.job, os.environ, sys.argv[0]), card_place(live_task))
        run = TrackedRun(
            job=task.job,
            uri=gang.store.uri,
            run=node.run,
            card=commands.card,
            started=gang.generation.created,
            parameters=config.model_dump(mode="json", exclude={"trackers", "notify"}),
        )
        self._trackers = LiveTrackers([_in_own_folder(each, task.job) for each in config.trackers], gang.store, run)
        self._notifier = _notifier(config, gang, task, node.retries, commands)
        self._stack = ExitStack()

    def __enter__(self) -> "Watchers":
        with ExitStack() as stack:
            stack.enter_context(self._trackers)
            if self._notifier is not None:
                stack.enter_context(self._notifier)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def end(self, outcome: GangOutcome) -> None:
        """The gang has ended, and its log is complete. Returns at once."""
        self._trackers.end(ending_of(outcome.outcome))
        if self._notifier is not None:
            self._notifier.end()

    def join(self) -> None:
        """Wait for what the trackers and the notified still have to get, for a bounded time."""
        if self._notifier is not None:
            self._notifier.join()
        self._trackers.join()


def card_place(live_task: str) -> str:
    """URL of the task in Metaflow's UI where one is configured, else the command that shows its card."""
    from metaflow.metaflow_config import UI_URL

    if UI_URL:
        return f"{UI_URL.rstrip('/')}/{live_task}"
    return f"python {shlex.quote(sys.argv[0])} card view {live_task.partition('/')[2]}"


def _in_own_folder(config: TrackerConfig, job: str) -> TrackerConfig:
    """TensorBoard shows each folder as a run."""
    if config.tensorboard is None:
        return config
    return TrackerConfig(tensorboard=str(Path(config.tensorboard).absolute() / job))


def _notifier(config: RunConfig, gang: Gang, task: Task, retries: int, commands: Commands) -> Notifier | None:
    if not config.notify.on:
        return None
    try:
        check_target(os.environ)
    except ValueError as error:  # which a flow of one's own learns here
        say(f"convoy: nobody is notified: {error}", error=True)
        return None
    steps = config.train.steps if task.script is None else None
    subject = Subject(task.job, commands, steps, retries)
    return Notifier(Outbox(config.notify, gang.store), gang.store, subject, gang.generation.generation)
