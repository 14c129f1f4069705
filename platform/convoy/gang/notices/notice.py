"""A notice, what the gang does about it, and how sources of notices are polled, each in a thread of its own."""

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Literal, Protocol

from convoy.config.train import NoticesConfig
from convoy.gang.messages import Evidence, own_evidence
from convoy.gang.workers.board import ORDERS_BY_STRENGTH, OrderKind

SAVE_MARGIN = 1.2
"""A save is assumed to take this many times as long as the newest one. No more: a save that comes too late costs
little, since the commit before it remains, and one that is not tried costs all steps since then."""

FIRST_SAVE_SECONDS = 15.0
"""Assumed length of a save where none was measured yet."""

AGREE_STEPS = 2
"""The step that is under way, and the one at whose end the ranks agree."""

END_SECONDS = 2.0
"""From the commit to the end of the attempt: logs are flushed and processes end."""

_REBALANCE: dict[str, OrderKind] = {"ignore": "none", "save": "save", "drain": "save_and_end"}


DEADLINE_SECONDS = 3.0
"""A source that takes longer does not answer: three steps of a request may take a second each."""

OWN_SECONDS = 0.1
"""Between two polls of this process itself."""


@dataclass(frozen=True)
class Notice:
    """A machine will be reclaimed, or is likely to be, or a person wants the gang to end."""

    source: str
    kind: Literal["end", "rebalance"]
    deadline: float | None
    """Unix time, by this host's clock, after which nothing more can be done; 0: at once; None: there is no hurry."""
    text: str
    """For people. Two notices of a source with the same text are one."""


class NoAnswerError(Exception):
    """The source cannot be polled, or did not answer; the text is one line that says why."""


class NoticeSource(Protocol):
    """Something that may give notice. Used by one thread at a time."""

    name: str
    foretells: bool
    """It announces that the machine is reclaimed, which is what people mean by a source of notices."""

    def poll(self) -> Notice | None:
        """The notice, if there is one. May take any time: other sources are polled meanwhile. Raises NoAnswerError."""


def order_for(
    notice: Notice, config: NoticesConfig, save_seconds: float, step_seconds: float, now: float, *, unsaved: bool
) -> OrderKind:
    """The order that a notice leads to.

    save_seconds: of the slowest rank's newest save, from the call to the commit; 0: none was measured. step_seconds:
    of the slowest rank's last step; 0: unknown. now: Unix time by the clock of the node that has the notice. unsaved:
    the generation has done something that would be lost, or may have.
    """
    if notice.kind == "rebalance":
        return _REBALANCE[config.rebalance]
    if not unsaved:
        return "end"
    if notice.deadline is None or now + seconds_to_end(save_seconds, step_seconds) <= notice.deadline:
        return "save_and_end"
    return "end"


def seconds_to_end(save_seconds: float, step_seconds: float) -> float:
    """How long it takes until the gang has agreed, saved and ended, with a margin."""
    save = SAVE_MARGIN * save_seconds if save_seconds > 0 else FIRST_SAVE_SECONDS
    return AGREE_STEPS * step_seconds + save + END_SECONDS


def strongest_order(orders: Iterable[OrderKind]) -> OrderKind:
    """What to do about several notices: the order that ends soonest."""
    return max(orders, key=ORDERS_BY_STRENGTH.index, default="none")


def ending_evidence(notice: Notice, node: int, now: float, wall: float, *, worth_waiting: bool) -> Evidence:
    """What an agent sends the gang about a notice for which the attempt ends.

    now, wall: the same moment by `time.monotonic` and as Unix time. worth_waiting: workers have done something that
    would be lost; otherwise the gang ends at once. The evidence's deadline leaves time to end in good order.
    """
    deadline = None if worth_waiting else now
    if worth_waiting and notice.deadline is not None:
        deadline = now + max(notice.deadline - wall - END_SECONDS, END_SECONDS)
    reason = f"({notice.source}): {notice.text}"
    return own_evidence("notice", node, now, reason=reason, deadline=deadline)


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
        sources: Sequence[NoticeSource],
        poll_seconds: float = 1.0,
        deadline_seconds: float = DEADLINE_SECONDS,
        in_process: Sequence[NoticeSource] = (),
    ) -> None:
        """poll_seconds: from one poll to the next. deadline_seconds: for an answer. in_process: what this process
        observes itself, which costs nothing to poll and may leave few seconds: it is polled more often."""
        self.notices: SimpleQueue[Notice] = SimpleQueue()
        self._deadline_seconds = deadline_seconds
        self._done = threading.Event()
        paces = [*((source, poll_seconds) for source in sources), *((source, OWN_SECONDS) for source in in_process)]
        self._pollers = [_SourcePoller(source, seconds, self.notices, self._done) for source, seconds in paces]

    def __enter__(self) -> "Poller":
        for poller in self._pollers:
            poller.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop polling. Nothing is put into `notices` afterwards; threads end as soon as their poll does."""
        self._done.set()

    def statuses(self) -> list[SourceStatus]:
        """The present status of each source, in their order."""
        return [poller.status(self._deadline_seconds) for poller in self._pollers]

    def await_first_round(self) -> list[SourceStatus]:
        """The status of each source after its first poll, or after its deadline without an answer."""
        until = time.monotonic() + self._deadline_seconds
        for poller in self._pollers:
            poller.polled_once.wait(max(0.0, until - time.monotonic()))
        return self.statuses()


class _SourcePoller:
    """One source and the thread that polls it."""

    def __init__(
        self, source: NoticeSource, poll_seconds: float, notices: "SimpleQueue[Notice]", done: threading.Event
    ) -> None:
        self.polled_once = threading.Event()
        self.thread = threading.Thread(target=self._poll_until_done, name=f"notices {source.name}", daemon=True)
        self._source = source
        self._poll_seconds = poll_seconds
        self._notices = notices
        self._done = done
        self._began: float | None = None
        """When the poll under way began; None between two."""
        self._problem = "not polled yet"

    def status(self, deadline_seconds: float) -> SourceStatus:
        began, problem = self._began, self._problem
        waited = 0.0 if began is None else time.monotonic() - began
        if waited > deadline_seconds:
            problem = f"no answer for {waited:.1f} s"
        return SourceStatus(self._source.name, self._source.foretells, not problem, problem)

    def _poll_until_done(self) -> None:
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
        except NoAnswerError as error:
            return None, str(error)
        except Exception as error:  # one fault must not silence a source for the rest of the run
            return None, f"{type(error).__name__}: {error}"


def poll_once(sources: Sequence[NoticeSource], deadline_seconds: float = DEADLINE_SECONDS) -> list[SourceStatus]:
    """Poll each source once, all at the same time."""
    with Poller(sources, deadline_seconds=deadline_seconds) as poller:
        return poller.await_first_round()
