"""The body of the gang's step: run this node's part of the gang, and draw its card.

Node 0's card is the live one, drawn from the event log; the other nodes' cards say where that is.
"""

import time

from convoy.events.types import PEER_LOST, WorkerExited
from convoy.gang.agent import Gang, Node, Task, failure_message
from convoy.gang.assignment import Outcome
from convoy.launch.live_card import Draw, LiveCard, Watch
from convoy.report.page import Callout, Heading, Page, Text
from convoy.storage import StoreUnavailable

CAUSE_SECONDS = 3.0
"""Node 0 waits this long for another node to tell why its workers lost a peer."""

FOREVER = 3600.0


class GangFailedError(Exception):
    """The gang failed; the text tells the first cause."""


def run_gang_step(task: Task, node: Node, draw: Draw, live_task: str) -> None:
    """Run to the end of this node's workers. Raises GangFailedError. live_task: pathspec of node 0's task."""
    if node.index == 0:
        _run_first(task, node, draw)
    else:
        _run_other(task, node, draw, live_task)


def pointer_page(task: Task, node: Node, live_task: str, failure: str = "") -> Page:
    """What the cards of all nodes but the first say."""
    ranks = f"ranks {node.index * node.nproc_per_node} to {(node.index + 1) * node.nproc_per_node - 1}"
    return Page(
        task.config.model.name,
        (
            Heading(f"Node {node.index} of {node.nodes}", level=1),
            *((Callout("Failed", failure),) if failure else ()),
            Text(f"Job {task.job}, {ranks if node.nproc_per_node > 1 else f'rank {node.index}'}", quiet=True),
            Text(f"The live card of the whole gang is on node 0: {live_task}"),
        ),
    )


def _run_first(task: Task, node: Node, draw: Draw) -> None:
    with Gang(task, node) as gang:
        watch = Watch.of(gang.store, task.config)
        with LiveCard(watch, draw, task.config.report.card_refresh_seconds) as card:
            outcome = _until_the_end(gang)
        if outcome.outcome == "failed":
            message = _first_cause(watch, gang.generation.generation, outcome)
            card.finish(force=True)
            raise GangFailedError(message)
    card.finish(force=False)


def _run_other(task: Task, node: Node, draw: Draw, live_task: str) -> None:
    with Gang(task, node) as gang:
        # Drawn when the workers have started: a card takes a second of a core, which they need now.
        outcome = gang.wait(task.config.report.card_refresh_seconds)
        draw(pointer_page(task, node, live_task), False)
        outcome = outcome or _until_the_end(gang)
        if outcome.outcome == "failed":
            draw(pointer_page(task, node, live_task, outcome.message), True)
            raise GangFailedError(outcome.message)


def _until_the_end(gang: Gang) -> Outcome:
    while True:
        outcome = gang.wait(FOREVER)
        if outcome is not None:
            return outcome


def _first_cause(watch: Watch, generation: int, own: Outcome) -> str:
    """What this node saw; where that is only a lost peer, what the peer's node tells within CAUSE_SECONDS."""
    deadline = time.monotonic() + CAUSE_SECONDS
    while time.monotonic() < deadline:
        try:
            events = watch.poll()
        except StoreUnavailable:
            break
        exits = [e for e in events if isinstance(e, WorkerExited) and e.generation == generation]
        causes = [e for e in exits if e.exit_code != PEER_LOST]
        if causes:
            return failure_message(causes[0], causes[0].node)
        time.sleep(0.1)
    return own.message
