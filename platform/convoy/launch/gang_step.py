"""The body of the gang's step: run this node's part of the gang, and draw the live card from the event log."""

import time
from dataclasses import dataclass
from typing import Any

from convoy.config.run import RunConfig
from convoy.events.log import EventReader
from convoy.events.types import AnyEvent, WorkerExited
from convoy.gang.agent import Gang, Node, Task
from convoy.gang.assignment import PEER_LOST, Outcome
from convoy.report.fold import fold
from convoy.report.page import Page
from convoy.report.train_page import live_page
from convoy.storage import Store

CAUSE_SECONDS = 3.0
"""Node 0 waits this long for another node to tell why its workers lost a peer."""


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


def run_gang_step(task: Task, node: Node, draw: Any) -> None:
    """Run to the end of this node's workers. draw(page, force): shows a page. Raises GangFailedError."""
    with Gang(task, node) as gang:
        watch = Watch.of(gang.store, task.config)
        outcome = None
        while outcome is None:
            outcome = gang.wait(task.config.report.card_refresh_seconds)
            if node.index == 0 and outcome is None:
                draw(watch.page(), False)
        if outcome.outcome == "failed":
            message = _first_cause(watch, gang.generation.generation, outcome) if node.index == 0 else outcome.message
            if node.index == 0:
                draw(watch.page(), True)
            raise GangFailedError(message)
    if node.index == 0:
        draw(watch.page(), False)


def _first_cause(watch: Watch, generation: int, own: Outcome) -> str:
    """What this node saw; where that is only a lost peer, what the peer's node tells within CAUSE_SECONDS."""
    deadline = time.monotonic() + CAUSE_SECONDS
    while True:
        watch.poll()
        exits = [e for e in watch.events if isinstance(e, WorkerExited) and e.generation == generation]
        causes = [e for e in exits if e.exit_code != PEER_LOST]
        if causes:
            from convoy.gang.agent import failure_message

            return failure_message(causes[0], causes[0].node)
        if time.monotonic() > deadline:
            return own.message
        time.sleep(0.1)
