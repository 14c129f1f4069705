"""The body of the gang's step: run this node's part of the gang, and draw its card.

Node 0's card is the live one, drawn from the event log; the other nodes' cards say where that is.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from convoy.config.run import RunConfig
from convoy.events.log import EventReader
from convoy.events.types import AnyEvent, WorkerExited
from convoy.gang.agent import Gang, Node, Task, failure_message
from convoy.gang.assignment import PEER_LOST, Outcome
from convoy.report.fold import fold
from convoy.report.page import Heading, Page, Text
from convoy.report.train_page import live_page
from convoy.storage import Store

CAUSE_SECONDS = 3.0
"""Node 0 waits this long for another node to tell why its workers lost a peer."""

Draw = Callable[[Page, bool], None]


class GangFailedError(Exception):
    """The gang failed; the text tells the first cause."""


@dataclass
class Watch:
    """The job's log, read as it grows."""

    reader: EventReader
    config: dict[str, Any]
    target_steps: int
    events: list[AnyEvent]

    @classmethod
    def of(cls, store: Store, config: RunConfig) -> "Watch":
        return cls(EventReader(store), config.model_dump(mode="json"), config.train.steps, [])

    def page(self) -> Page:
        """The live page of what is known now."""
        self.poll()
        return live_page(fold(self.events, self.target_steps), self.config)

    def poll(self) -> list[AnyEvent]:
        """What came since the last poll."""
        new = self.reader.poll()
        self.events = sorted([*self.events, *new], key=lambda e: e.t)
        return new


def run_gang_step(task: Task, node: Node, draw: Draw, live_task: str) -> None:
    """Run to the end of this node's workers. Raises GangFailedError.

    draw(page, force): shows a page. live_task: pathspec of node 0's task.
    """
    if node.index == 0:
        _run_first(task, node, draw)
    else:
        _run_other(task, node, lambda: draw(pointer_page(task, node, live_task), False))


def pointer_page(task: Task, node: Node, live_task: str) -> Page:
    """What the cards of all nodes but the first say."""
    ranks = f"ranks {node.index * node.nproc_per_node} to {(node.index + 1) * node.nproc_per_node - 1}"
    return Page(
        task.config.model.name,
        (
            Heading(f"Node {node.index} of {node.nodes}", level=1),
            Text(f"Job {task.job}, {ranks if node.nproc_per_node > 1 else f'rank {node.index}'}", quiet=True),
            Text(f"The live card of the whole gang is on node 0: {live_task}"),
        ),
    )


def _run_first(task: Task, node: Node, draw: Draw) -> None:
    with Gang(task, node) as gang:
        watch = Watch.of(gang.store, task.config)
        outcome = None
        while outcome is None:
            outcome = gang.wait(task.config.report.card_refresh_seconds)
            if outcome is None:
                draw(watch.page(), False)
        if outcome.outcome == "failed":
            message = _first_cause(watch, gang.generation.generation, outcome)
            draw(watch.page(), True)
            raise GangFailedError(message)
    draw(watch.page(), False)


def _run_other(task: Task, node: Node, point: Callable[[], None]) -> None:
    with Gang(task, node) as gang:
        # Drawn when the workers have started: a card takes a second of a core, which they need now.
        outcome = gang.wait(task.config.report.card_refresh_seconds)
        point()
        while outcome is None:
            outcome = gang.wait(task.config.report.card_refresh_seconds)
        if outcome.outcome == "failed":
            raise GangFailedError(outcome.message)


def _first_cause(watch: Watch, generation: int, own: Outcome) -> str:
    """What this node saw; where that is only a lost peer, what the peer's node tells within CAUSE_SECONDS."""
    deadline = time.monotonic() + CAUSE_SECONDS
    while True:
        watch.poll()
        exits = [e for e in watch.events if isinstance(e, WorkerExited) and e.generation == generation]
        causes = [e for e in exits if e.exit_code != PEER_LOST]
        if causes:
            return failure_message(causes[0], causes[0].node)
        if time.monotonic() > deadline:
            return own.message
        time.sleep(0.1)
