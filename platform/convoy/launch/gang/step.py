"""The body of the gang's step: run this node's part of the gang, and draw its card.

Node 0's card is the live one, drawn from the event log; the other nodes' cards say where that is.
"""

from convoy.config.run import RunConfig
from convoy.display.page import Callout, Heading, Page, Text
from convoy.gang.agent import Gang
from convoy.gang.outcome import INTERRUPTED, Outcome, PreemptedError
from convoy.gang.task import Node, Task
from convoy.job.record import job_store
from convoy.launch.gang.join_failures import Hindrance
from convoy.launch.gang.live_card import Draw, LiveCard, Watch
from convoy.launch.plans import JobPlan, Json

FOREVER = 3600.0


class GangFailedError(Exception):
    """The gang failed; the text tells the first cause, and is the same on all nodes."""


def run_gang_step(task: Task, node: Node, draw: Draw, live_task: str, plan: Json | None = None) -> None:
    """Run to the end of the gang. Raises GangFailedError, PreemptedError. live_task: pathspec of node 0's task. plan:
    as the run's first step made it; None: it is made here."""
    if node.index == 0:
        _run_first(task, node, draw, plan)
    else:
        _run_other(task, node, draw, live_task)


def pointer_page(task: Task, node: Node, live_task: str, ended: Outcome | None = None) -> Page:
    """What the cards of all nodes but the first say."""
    ranks = f"ranks {node.first_rank} to {node.first_rank + node.nproc_per_node - 1}"
    bad = ended is not None and ended.outcome in ("failed", "preempted")
    return Page(
        task.config.model.name if task.script is None else task.script.name,
        (
            Heading(f"Node {node.index} of {node.nodes}", level=1),
            *((Callout(_how(ended).capitalize(), ended.message),) if ended is not None and bad else ()),
            Text(f"Job {task.job}, {ranks if node.nproc_per_node > 1 else f'rank {node.index}'}", quiet=True),
            Text(f"The live card of the whole gang is on node 0: {live_task}"),
        ),
    )


def _run_first(task: Task, node: Node, draw: Draw, settled_plan: Json | None) -> None:
    with Gang(task, node, Hindrance(job_store(task.root, task.job, task.config), node)) as gang:
        watch = Watch.of(gang.store, gang.config, task.script)
        plan = JobPlan(gang.store, _with_ranks(gang.config, node), settled_plan) if task.script is None else None
        with LiveCard(watch, draw, task.config.report.card_refresh_seconds, plan) as card:
            outcome = _until_the_end(gang)
        if outcome.outcome in ("failed", "preempted"):
            card.finish(force=True)
            raise _error(outcome)
    card.finish(force=False)


def _with_ranks(config: RunConfig, node: Node) -> RunConfig:
    """The configuration with as many workers as there are, which `@convoy_gang` may have told."""
    cluster = config.cluster.model_copy(update={"nproc_per_node": node.nproc_per_node})
    return config.model_copy(update={"cluster": cluster})


def _run_other(task: Task, node: Node, draw: Draw, live_task: str) -> None:
    with Gang(task, node) as gang:
        # Drawn when the workers have started: a card takes a second of a core, which they need now.
        outcome = gang.wait(task.config.report.card_refresh_seconds)
        # Written now even if the gang has ended: what the step does after it may fail, and then nobody writes a card.
        lost = outcome is not None and outcome.outcome in ("failed", "preempted")
        draw(pointer_page(task, node, live_task), "show" if lost else "refresh")
        outcome = outcome or _until_the_end(gang)
        if outcome.outcome in ("failed", "preempted"):
            draw(pointer_page(task, node, live_task, outcome), "write")
            raise _error(outcome)


def _until_the_end(gang: Gang) -> Outcome:
    while True:
        outcome = gang.wait(FOREVER)
        if outcome is not None:
            return outcome


def _how(ended: Outcome) -> str:
    """In a word, as the first node's card has it."""
    return "interrupted" if ended.message.startswith(INTERRUPTED) else ended.outcome


def _error(ended: Outcome) -> GangFailedError | PreemptedError:
    return (PreemptedError if ended.outcome == "preempted" else GangFailedError)(ended.message)
