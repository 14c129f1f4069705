"""Asks every source of notices again and again, each in a thread of its own."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from convoy.gang.notices.notice import NoAnswer, Notice, Source

DEADLINE_SECONDS = 3.0
"""A source that is asked for longer does not answer: three steps of a request may take a second each."""

OWN_SECONDS = 0.1
"""Between two questions to a process about itself."""


@dataclass(frozen=True)
class Standing:
    """Whether a source answers."""

    source: str
    foretells: bool
    answers: bool
    problem: str
    """Why not, in one line; empty if it does."""


class Poller:
    """Puts each notice into `notices` once, while a `with` block runs.

    A source that hangs, on a network or on a file system that has gone, holds up nobody: its thread is left to itself,
    and it does not keep the process from ending.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        poll_seconds: float = 1.0,
        deadline_seconds: float = DEADLINE_SECONDS,
        own: Sequence[Source] = (),
    ) -> None:
        """poll_seconds: from one question to the next. deadline_seconds: for an answer. own: what this process itself
        sees, which costs nothing to ask and may leave few seconds: it is asked more often."""
        self.notices: SimpleQueue[Notice] = SimpleQueue()
        self._deadline_seconds = deadline_seconds
        self._done = threading.Event()
        paces = [*((source, poll_seconds) for source in sources), *((source, OWN_SECONDS) for source in own)]
        self._watches = [_Watch(source, seconds, self.notices, self._done) for source, seconds in paces]

    def __enter__(self) -> "Poller":
        for watch in self._watches:
            watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ask no more. Nothing is put into `notices` afterwards; threads end as soon as their question does."""
        self._done.set()

    def standing(self) -> list[Standing]:
        """How each source stands now, in the order given."""
        return [watch.standing(self._deadline_seconds) for watch in self._watches]

    def answering(self) -> list[str]:
        """Names of the sources that answer. Before the first round is over some may be missing."""
        return [standing.source for standing in self.standing() if standing.answers]

    def first_round(self) -> list[Standing]:
        """How each source stands after it was asked once, or has not answered by its deadline."""
        until = time.monotonic() + self._deadline_seconds
        for watch in self._watches:
            watch.asked_once.wait(max(0.0, until - time.monotonic()))
        return self.standing()


class _Watch:
    """One source and the thread that asks it."""

    def __init__(
        self, source: Source, poll_seconds: float, notices: "SimpleQueue[Notice]", done: threading.Event
    ) -> None:
        self.asked_once = threading.Event()
        self._source = source
        self._poll_seconds = poll_seconds
        self._notices = notices
        self._done = done
        self._asked_at: float | None = None
        """When the question under way began; None between two."""
        self._problem = "not asked yet"
        self._thread = threading.Thread(target=self._run, name=f"notices {source.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def standing(self, deadline_seconds: float) -> Standing:
        asked_at, problem = self._asked_at, self._problem
        waited = 0.0 if asked_at is None else time.monotonic() - asked_at
        if waited > deadline_seconds:
            problem = f"no answer for {waited:.1f} s"
        return Standing(self._source.name, self._source.foretells, not problem, problem)

    def _run(self) -> None:
        told: set[tuple[str, str]] = set()
        while not self._done.is_set():
            began = self._asked_at = time.monotonic()
            notice, self._problem = self._ask()
            self._asked_at = None
            if notice is not None and (notice.kind, notice.text) not in told and not self._done.is_set():
                told.add((notice.kind, notice.text))
                self._notices.put(notice)
            self.asked_once.set()
            self._done.wait(max(0.0, began + self._poll_seconds - time.monotonic()))

    def _ask(self) -> tuple[Notice | None, str]:
        """The notice if there is one, and what is wrong if something is."""
        try:
            return self._source.ask(), ""
        except NoAnswer as error:
            return None, str(error)
        except Exception as error:  # one fault may not silence a source for the rest of the run
            return None, f"{type(error).__name__}: {error}"


def which_answer(sources: Sequence[Source], deadline_seconds: float = DEADLINE_SECONDS) -> list[Standing]:
    """Ask each source once, side by side."""
    with Poller(sources, deadline_seconds=deadline_seconds) as poller:
        return poller.first_round()


def foretold(standings: Sequence[Standing]) -> bool:
    """Whether anything that answers would tell ahead that this machine is taken away."""
    return any(standing.foretells and standing.answers for standing in standings)
