"""Notifying of a job's moments while it runs: a thread that follows the event log, and delays nobody."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from convoy.config.errors import one_line
from convoy.config.notify import Moment, NotifyConfig
from convoy.gang.async_call import say
from convoy.job.events.log import EventReader, read_events
from convoy.job.notified import Claim, begin, claim, give_back, mark_sent
from convoy.report.fold import fold
from convoy.report.notifications.message import Commands, Message, message_for
from convoy.report.notifications.moments import MomentLog, Occurrence, occurrences
from convoy.report.notifications.send import SEND_SECONDS, is_sent
from convoy.storage import Store

POLL_SECONDS = 10.0
"""Between two looks at the log, each of which lists the objects of its segments."""

AGAIN_SECONDS = 2.0
"""Between two looks whether a message is due again, at the end; and whether another sender has sent one."""

LEASE_SECONDS = 2 * SEND_SECONDS
"""A claim without a mark that is older is of a sender that died."""

TRIES = 5
"""A message that the target refuses so often is given up until the job's next attempt."""

PAUSE_SECONDS = 15.0
"""Before the next try."""

END_SECONDS = SEND_SECONDS + 5.0
"""At the end of the gang, for the messages about it."""

DELIVER_SECONDS = LEASE_SECONDS + SEND_SECONDS
"""For a message of which a process that follows no log has to be rid: so long, somebody else may be sending it."""

Send = Callable[[Message], bool | None]
"""As `send.is_sent`."""


class Outbox:
    """Sends the messages about one job that are wanted, each once."""

    def __init__(self, config: NotifyConfig, store: Store, send: Send = is_sent) -> None:
        """store: the job's."""
        self._on, self._store, self._send = config.on, store, send
        self._settled: set[Moment] = set()
        self._tries: dict[Moment, int] = {}
        self._next_try: dict[Moment, float] = {}

    @property
    def is_waiting(self) -> bool:
        """A message is to be tried again."""
        return bool(self._next_try.keys() - self._settled)

    def post(self, moment: Moment, write: Callable[[], Message]) -> None:
        """Send what `write` gives, if the moment is wanted and its message was not sent. Raises StoreUnavailable."""
        if moment not in self._on or moment in self._settled or time.monotonic() < self._next_try.get(moment, 0.0):
            return
        claimed = claim(self._store, moment, LEASE_SECONDS)
        if claimed == "sent":
            self._settled.add(moment)
        elif claimed == "claimed":
            self._next_try[moment] = time.monotonic() + AGAIN_SECONDS
        elif sent := self._send(self._written(claimed, write)):
            mark_sent(self._store, moment)
            self._settled.add(moment)
        else:
            self._retry_later(moment, "no answer" if sent is None else "the target did not take it")
            if sent is False:
                give_back(self._store, claimed)

    def deliver(self, moment: Moment, write: Callable[[], Message]) -> None:
        """As `post`, for a process that does nothing else: it tries until the message is sent, or for a minute."""
        deadline = time.monotonic() + DELIVER_SECONDS
        self.post(moment, write)
        while self.is_waiting and time.monotonic() < deadline:
            time.sleep(AGAIN_SECONDS)
            self.post(moment, write)

    def _written(self, claimed: Claim, write: Callable[[], Message]) -> Message:
        try:
            return write()
        except Exception:
            give_back(self._store, claimed)
            raise

    def _retry_later(self, moment: Moment, why: str) -> None:
        tries = self._tries[moment] = self._tries.get(moment, 0) + 1
        self._next_try[moment] = time.monotonic() + PAUSE_SECONDS
        if tries == 1:
            say(f"convoy: notify: the message `{moment}` was not sent: {why}; it is tried again", error=True)
        if tries >= TRIES:
            self._settled.add(moment)


@dataclass(frozen=True)
class Subject:
    """The job that messages are about."""

    job: str
    commands: Commands
    steps: int | None = None
    """Of the whole job; None: a script's."""
    retries: int = 0
    """Of the gang's step in one run."""


class Notifier:
    """Follows the log while a `with` block runs. `end` and `join` send the last messages."""

    def __init__(self, outbox: Outbox, store: Store, subject: Subject, generation: int) -> None:
        """store: the job's. generation: of the gang now."""
        self._outbox, self._store, self._subject, self._generation = outbox, store, subject, generation
        self._done = threading.Event()
        self._warned = False
        self._thread = threading.Thread(target=self._follow, name="notifications", daemon=True)

    def __enter__(self) -> "Notifier":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def end(self) -> None:
        """The log is complete. Returns at once."""
        self._done.set()

    def join(self, seconds: float = END_SECONDS) -> None:
        """Wait for the messages about what the log has, or for so long."""
        self._thread.join(seconds)

    def _follow(self) -> None:
        reader, log = EventReader(self._store), MomentLog()
        since, due = None, list[Occurrence]()
        while True:
            last = self._done.is_set()  # before the log is read, which is complete then
            try:
                since = begin(self._store, lambda: self._generation) if since is None else since
                if log.add(reader.poll()):
                    due = occurrences(log.events, self._subject.retries, since)
                for occurrence in due:
                    self._outbox.post(occurrence.moment, partial(job_message, occurrence, self._store, self._subject))
            except Exception as error:
                self._warn(one_line(error))
            if last and not self._outbox.is_waiting:
                return
            time.sleep(AGAIN_SECONDS) if last else self._done.wait(POLL_SECONDS)

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            say(f"convoy: notify: {why}; it is tried again", error=True)


def job_message(occurrence: Occurrence, store: Store, subject: Subject) -> Message:
    """With the job's log as it is now. Raises StoreUnavailable."""
    report = fold(read_events(store), subject.steps)
    return message_for(occurrence.moment, subject.job, occurrence.cause, report, subject.commands)
