"""The live card, drawn from the event log in a thread of its own.

Whoever watches the workers must never wait for a store, a chart or a bug in either: a dead worker is seen at once, and
a card that cannot be drawn costs a line of output, not the gang.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from convoy.config.run import RunConfig
from convoy.display.page import Page
from convoy.gang.async_call import say
from convoy.gang.task import Script
from convoy.job.events.log import EventReader
from convoy.job.events.types import AnyEvent
from convoy.launch.plans import JobPlan
from convoy.report.fold import fold
from convoy.report.pages.script import script_page
from convoy.report.pages.train import live_page
from convoy.report.tail import progress_line
from convoy.report.train_report import TrainReport
from convoy.storage import Store

How = Literal["show", "refresh", "write"]
"""show: where the task's end writes the card, if it ends well; refresh: soon; write: now, and return when that is done.

Each of the last two is a process of Metaflow's, which takes a second of a core."""

Draw = Callable[[Page, How], None]
"""draw(page, how): have the card show a page."""

PATIENCE_SECONDS = 20.0
"""At the end, a drawing that is under way gets this long."""

LAST_SECONDS = 60.0
"""And so long the last one: Metaflow makes a card in a process of its own."""


@dataclass
class Watch:
    """The job's log, read as it grows. Used by several threads, one at a time."""

    reader: EventReader
    config: RunConfig
    script: Script | None = None
    events: list[AnyEvent] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, store: Store, config: RunConfig, script: Script | None = None) -> "Watch":
        """script: what the workers run; None: Convoy's training."""
        return cls(EventReader(store), config, script)

    def poll(self) -> list[AnyEvent]:
        """Everything known now, by time. Raises StoreUnavailable."""
        with self._lock:
            new = self.reader.poll()
            if new:
                self.events = sorted([*self.events, *new], key=lambda e: e.t)
            return self.events

    def report(self) -> TrainReport:
        """What is known now. Raises StoreUnavailable."""
        return fold(self.poll(), self.config.train.steps if self.script is None else None)


class LiveCard:
    """Draws every `seconds` while a `with` block runs; `finish` draws the last time."""

    def __init__(self, watch: Watch, draw: Draw, seconds: float, plan: JobPlan | None = None) -> None:
        """plan: of the job, to be shown next to what is measured."""
        self._plan = plan
        self._watch = watch
        self._draw = draw
        self._seconds = seconds
        self._config: dict[str, Any] = watch.config.model_dump(mode="json")
        self._script = watch.script
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
        last = threading.Thread(target=self._safely, args=(how,), name="last card", daemon=True)
        last.start()
        last.join(LAST_SECONDS)

    def _go_on(self) -> None:
        while not self._done.wait(self._seconds):
            self._safely("refresh")

    def _safely(self, how: How) -> None:
        try:
            report = self._watch.report()
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
        return live_page(report, self._config, self._plan.at(report) if self._plan else None)

    def _say(self, line: str) -> None:
        if line != self._last_line:
            say(line)
        self._last_line = line
