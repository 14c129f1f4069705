"""The body of the gang's step: run this node's part of the gang, draw its card, and serve its metrics.

Node 0's card is the live one, drawn from the event log in a thread of its own; the other nodes' cards say where that
is. Whoever watches the workers must never wait for a store, a chart or a bug in either: a dead worker is detected at
once, and a card that cannot be drawn costs a line of output, not the gang.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from convoy.config.errors import ConfigError, one_line
from convoy.config.run import RunConfig
from convoy.display.page import Callout, Heading, Page, Text
from convoy.gang.agent import Gang
from convoy.gang.async_call import BackgroundCall, say
from convoy.gang.messages import INTERRUPTED, GangOutcome, PreemptedError
from convoy.gang.task import Node, Script, Task
from convoy.job.events.log import EventReader
from convoy.job.events.registry import Event
from convoy.job.generations import read_refusal
from convoy.job.record import job_store
from convoy.launch.gang.watchers import Watchers
from convoy.launch.monitor.ports import check_package, node_port
from convoy.launch.plans import JobPlan, Json
from convoy.report.fold import fold
from convoy.report.pages.train import live_page, script_page
from convoy.report.tail import progress_line
from convoy.report.train_report import TrainReport
from convoy.storage import Store, StoreUnavailable

if TYPE_CHECKING:  # imports prometheus_client, which a run without an endpoint need not have
    from convoy.launch.monitor.endpoint import MetricsEndpoint

How = Literal["show", "refresh", "write"]
"""show: where the task's end writes the card, if it ends well; refresh: soon; write: now, and return when that is done.

Each of the last two is a process of Metaflow's, which takes a second of a core."""

Draw = Callable[[Page, How], None]
"""draw(page, how): have the card show a page."""

PATIENCE_SECONDS = 20.0
"""At the end, a drawing that is under way gets this long."""

LAST_SECONDS = 60.0
"""And so long the last one: Metaflow makes a card in a process of its own."""


class LiveCard:
    """Draws every `seconds` while a `with` block runs; `finish` draws the last time."""

    def __init__(
        self,
        store: Store,
        config: RunConfig,
        draw: Draw,
        seconds: float,
        script: Script | None = None,
        plan: JobPlan | None = None,
        publish: Callable[[TrainReport], None] = lambda report: None,
    ) -> None:
        """store: the job's. script: what the workers run; None: Convoy's training. plan: of the job, to be shown next
        to what is measured. publish: is given each report before it is drawn."""
        self._reader = EventReader(store)
        self._events: list[Event] = []
        self._reading = threading.Lock()  # the last drawing has a thread of its own
        self._config = config
        self._draw = draw
        self._seconds = seconds
        self._script = script
        self._plan = plan
        self._publish = publish
        self._last_line = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="live card", daemon=True)

    def __enter__(self) -> "LiveCard":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def finish(self, *, force: bool) -> None:
        """The last drawing; call it after the `with` block. Where the root hangs it is given up.

        force: the task is about to fail, and may be killed: a drawing under way, which takes seconds on a busy machine,
        is not waited for, but ended by this one.
        """
        how: How = "write" if force else "refresh"
        if not force:
            self._thread.join(PATIENCE_SECONDS)
        last = threading.Thread(target=self._draw_safely, args=(how,), name="last card", daemon=True)
        last.start()
        last.join(LAST_SECONDS)

    def _go_on(self) -> None:
        while not self._done.wait(self._seconds):
            self._draw_safely("refresh")

    def _report(self) -> TrainReport:
        """What the log has now. Raises StoreUnavailable."""
        with self._reading:
            self._events = sorted([*self._events, *self._reader.poll()], key=lambda e: e.t)
            return fold(self._events, self._config.train.steps if self._script is None else None)

    def _draw_safely(self, how: How) -> None:
        try:
            report = self._report()
            self._publish(report)
            self._say(progress_line(report))
            page = self._page(report)
            # While one drawing is under way Metaflow drops the next one, which would be the last.
            if threading.current_thread() is not self._thread or not self._done.is_set():
                self._draw(page, how)
        except Exception as error:
            say(f"the card was not drawn: {type(error).__name__}: {error}", error=True)

    def _page(self, report: TrainReport) -> Page:
        if self._script is not None:
            return script_page(report, self._script.name)
        plan = self._plan.for_report(report) if self._plan else None
        return live_page(report, self._config.model_dump(mode="json"), plan)

    def _say(self, line: str) -> None:
        if line != self._last_line:
            say(line)
        self._last_line = line


ASK_SECONDS = 2.0
"""Between two questions to the store."""

ANSWER_SECONDS = 10.0
"""For each; a store that hangs answers nothing."""

FOREVER = 3600.0


class FormationObstacle:
    """Asked a few times a second while node 0 waits for the others. Waits for nothing itself."""

    def __init__(self, store: Store, node: Node) -> None:
        """store: the job's."""
        self._store = store
        self._node = node
        self._asking: BackgroundCall[str | None] | None = None
        self._ask_at = time.monotonic() + ASK_SECONDS

    def __call__(self) -> str | None:
        """Why the gang will not come together, in one line; None: nothing is known."""
        if not self._node.leads:
            return None  # the others learn it from node 0
        return (failed_sibling_text() if self._node.shares_host else None) or self._refused()

    def _refused(self) -> str | None:
        """What another node left in the store before it ended."""
        now = time.monotonic()
        if self._asking is None and now >= self._ask_at:
            formation, store = self._node.formation, self._store
            self._asking = BackgroundCall("the refusal", lambda: read_refusal(store, formation), ANSWER_SECONDS)
        if self._asking is None or not self._asking.is_over:
            return None
        answer, self._asking, self._ask_at = self._asking, None, now + ASK_SECONDS
        try:
            return answer.result()
        except StoreUnavailable:
            return None


def failed_sibling_text() -> str | None:
    """On this host node 0's process starts the other nodes': one that ended otherwise than with success, in words."""
    for pid, code in _ended_children():
        if code:
            return f"the process of another node (pid {pid}) ended before it had joined: its own lines above say why"
    return None


def _ended_children() -> Iterator[tuple[int, int]]:
    """Children that nobody has waited for yet, and their wait status. Those that lead a session are not Metaflow's."""
    ours = os.getpid()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid, state, parent, session = int(folder.name), fields[0], int(fields[1]), int(fields[3])
        if state == "Z" and parent == ours and session != pid:
            yield pid, int(fields[49])  # exit_code, see proc(5)


class GangFailedError(Exception):
    """The gang failed; the text names the first cause, and is the same on all nodes."""


def run_gang_step(task: Task, node: Node, draw: Draw, live_task: str, plan: Json | None = None) -> None:
    """Run to the end of the gang. Raises GangFailedError, PreemptedError. live_task: pathspec of node 0's task. plan:
    as the run's first step made it; None: it is made here."""
    with _metrics_endpoint(task, node) as endpoint:
        if node.index == 0:
            _run_lead_node(task, node, draw, live_task, plan, endpoint)
        else:
            _run_other_node(task, node, draw, live_task, endpoint)


@contextlib.contextmanager
def _metrics_endpoint(task: Task, node: Node) -> "Iterator[MetricsEndpoint | None]":
    """The node's endpoint while the block runs; None: it has none.

    A port is refused before a run starts, by `check_monitor`. Here the gang's nodes are paid for, and what nobody can
    scrape costs a line of output: after a retry the port may belong to the previous attempt for up to a minute.
    """
    first, port = task.config.monitor.port, node_port(task.config, node)
    if first is None or port is None:
        yield None
        return
    try:
        check_package(first)
        from convoy.launch.monitor.endpoint import MetricsEndpoint
    except (ConfigError, ImportError) as error:
        say(f"convoy: node {node.index}: its metrics are not served: {one_line(error)}", error=True)
        yield None
        return
    with MetricsEndpoint(port, task.job, node.index) as endpoint:
        yield endpoint


def pointer_page(task: Task, node: Node, live_task: str, ended: GangOutcome | None = None) -> Page:
    """What the cards of all nodes but the first say."""
    ranks = f"ranks {node.first_rank} to {node.first_rank + node.nproc_per_node - 1}"
    bad = ended is not None and ended.outcome in ("failed", "preempted")
    return Page(
        task.config.model.name if task.script is None else task.script.name,
        (
            Heading(f"Node {node.index} of {node.nodes}", level=1),
            *((Callout(_outcome_word(ended).capitalize(), ended.message),) if ended is not None and bad else ()),
            Text(f"Job {task.job}, {ranks if node.nproc_per_node > 1 else f'rank {node.index}'}", quiet=True),
            Text(f"The live card of the whole gang is on node 0: {live_task}"),
        ),
    )


def _run_lead_node(
    task: Task, node: Node, draw: Draw, live_task: str, settled_plan: Json | None, endpoint: "MetricsEndpoint | None"
) -> None:
    with Gang(task, node, FormationObstacle(job_store(task.root, task.job, task.config), node)) as gang:
        publish = _serve(gang, endpoint)
        # With as many workers as there are, which `@convoy_gang` may have set.
        cluster = gang.config.cluster.model_copy(update={"nproc_per_node": node.nproc_per_node})
        planned_config = gang.config.model_copy(update={"cluster": cluster})
        plan = JobPlan(gang.store, planned_config, settled_plan) if task.script is None else None
        seconds = task.config.report.card_refresh_seconds
        with Watchers(task, node, gang, live_task) as watchers:
            with LiveCard(gang.store, gang.config, draw, seconds, task.script, plan, publish) as card:
                outcome = _wait_for_end(gang)
            watchers.end(outcome)
            if outcome.outcome in ("failed", "preempted"):
                card.finish(force=True)
                watchers.join()
                raise _outcome_error(outcome)
            watchers.join()
    card.finish(force=False)


def _serve(gang: Gang, endpoint: "MetricsEndpoint | None") -> Callable[[TrainReport], None]:
    """Have the endpoint, if there is one, serve the gang's samples; returns what takes the reports for it."""
    if endpoint is None:
        return lambda report: None
    endpoint.watch(gang.sampler)
    return endpoint.publish


def _run_other_node(task: Task, node: Node, draw: Draw, live_task: str, endpoint: "MetricsEndpoint | None") -> None:
    with Gang(task, node) as gang:
        _serve(gang, endpoint)
        # Drawn when the workers have started: a card takes a second of a core, which they need now.
        outcome = gang.wait(task.config.report.card_refresh_seconds)
        # Written now even if the gang has ended: what the step does after it may fail, and then nobody writes a card.
        lost = outcome is not None and outcome.outcome in ("failed", "preempted")
        draw(pointer_page(task, node, live_task), "show" if lost else "refresh")
        outcome = outcome or _wait_for_end(gang)
        if outcome.outcome in ("failed", "preempted"):
            draw(pointer_page(task, node, live_task, outcome), "write")
            raise _outcome_error(outcome)


def _wait_for_end(gang: Gang) -> GangOutcome:
    while (outcome := gang.wait(FOREVER)) is None:
        pass
    return outcome


def _outcome_word(ended: GangOutcome) -> str:
    """In a word, as the first node's card has it."""
    return "interrupted" if ended.message.startswith(INTERRUPTED) else ended.outcome


def _outcome_error(ended: GangOutcome) -> GangFailedError | PreemptedError:
    return (PreemptedError if ended.outcome == "preempted" else GangFailedError)(ended.message)
