"""Polls every source of notices again and again, each in a thread of its own."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from convoy.gang.notices.notice import NoAnswer, Notice, Source

DEADLINE_SECONDS = 3.0
"""A source that takes longer does not answer: three steps of a request may take a second each."""

OWN_SECONDS = 0.1
"""Between two polls of this process itself."""


@dataclass(frozen=True)
class SourceStatus:
    """Whether a source answers."""

    source: str
    foretells: bool
    answers: bool
    problem: str
    """Why not, in one line; empty if it does."""


class Poller:
    """Puts each notice into `notices` once, while a `with` block runs.

    A source that hangs, on a network or on a file system that has gone, delays nothing else: its thread is abandoned,
    and does not keep the process from ending.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        poll_seconds: float = 1.0,
        deadline_seconds: float = DEADLINE_SECONDS,
        own: Sequence[Source] = (),
    ) -> None:
        """poll_seconds: from one poll to the next. deadline_seconds: for an answer. own: what this process itself
        observes, which costs nothing to poll and may leave few seconds: it is polled more often."""
        self.notices: SimpleQueue[Notice] = SimpleQueue()
        self._deadline_seconds = deadline_seconds
        self._done = threading.Event()
        paces = [*((source, poll_seconds) for source in sources), *((source, OWN_SECONDS) for source in own)]
        self._pollers = [_SourcePoller(source, seconds, self.notices, self._done) for source, seconds in paces]

    def __enter__(self) -> "Poller":
        for poller in self._pollers:
            poller.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop polling. Nothing is put into `notices` afterwards; threads end as soon as their poll does."""
        self._done.set()

    def statuses(self) -> list[SourceStatus]:
        """The present status of each source, in their order."""
        return [poller.status(self._deadline_seconds) for poller in self._pollers]

    def first_round(self) -> list[SourceStatus]:
        """The status of each source after its first poll, or after its deadline without an answer."""
        until = time.monotonic() + self._deadline_seconds
        for poller in self._pollers:
            poller.polled_once.wait(max(0.0, until - time.monotonic()))
        return self.statuses()


class _SourcePoller:
    """One source and the thread that polls it."""

    def __init__(
        self, source: Source, poll_seconds: float, notices: "SimpleQueue[Notice]", done: threading.Event
    ) -> None:
        self.polled_once = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"notices {source.name}", daemon=True)
        self._source = source
        self._poll_seconds = poll_seconds
        self._notices = notices
        self._done = done
        self._began: float | None = None
        """When the poll under way began; None between two."""
        self._problem = "not asked yet"

    def status(self, deadline_seconds: float) -> SourceStatus:
        began, problem = self._began, self._problem
        waited = 0.0 if began is None else time.monotonic() - began
        if waited > deadline_seconds:
            problem = f"no answer for {waited:.1f} s"
        return SourceStatus(self._source.name, self._source.foretells, not problem, problem)

    def _run(self) -> None:
        reported: set[tuple[str, str]] = set()
        while not self._done.is_set():
            began = self._began = time.monotonic()
            notice, self._problem = self._poll()
            self._began = None
            if notice is not None and (notice.kind, notice.text) not in reported and not self._done.is_set():
                reported.add((notice.kind, notice.text))
                self._notices.put(notice)
            self.polled_once.set()
            self._done.wait(max(0.0, began + self._poll_seconds - time.monotonic()))

    def _poll(self) -> tuple[Notice | None, str]:
        """The notice if there is one, and what is wrong if something is."""
        try:
            return self._source.poll(), ""
        except NoAnswer as error:
            return None, str(error)
        except Exception as error:  # one fault must not silence a source for the rest of the run
            return None, f"{type(error).__name__}: {error}"


def poll_once(sources: Sequence[Source], deadline_seconds: float = DEADLINE_SECONDS) -> list[SourceStatus]:
    """Poll each source once, all at the same time."""
    with Poller(sources, deadline_seconds=deadline_seconds) as poller:
        return poller.first_round()
