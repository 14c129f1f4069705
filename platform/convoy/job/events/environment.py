"""Events of what is around a gang: its storage, and notices that a machine will be taken away."""

from typing import Literal

from convoy.job.events.event import Event
from convoy.storage.usage import Requests

INTERRUPT = "interrupt"
"""The source of a notice that came from whoever started the run: Ctrl-C, a closed terminal, the end of its launcher."""


class StorageBad(Event):
    """A tier did not take and give back a few bytes in time (the agent's probe). Training goes on."""

    kind: Literal["storage_bad"] = "storage_bad"
    tier: str
    """URI of the job there."""
    problem: str
    """In one line, such as `No space left on device` or `no answer for 2.1 s`."""
    seconds: float
    """For which it had been asked."""


class StorageGood(Event):
    """A tier that was bad takes and gives bytes again."""

    kind: Literal["storage_good"] = "storage_good"
    tier: str
    seconds: float
    """For which it was bad."""


class StoreRequests(Requests, Event):
    """What the writer's process asked of one bucket since its last such event; written at most every minute, and at
    the end. A process that is killed does not write its last ones."""

    kind: Literal["store_requests"] = "store_requests"


class EventsDropped(Event):
    """Events before this one were lost: the storage was away for so long that too many waited for it."""

    kind: Literal["events_dropped"] = "events_dropped"
    events: int
    """How many, of this writer."""


class NoticeSources(Event):
    """Where this node can learn ahead that its machine will be taken away; written once, after the first round of
    questions. A signal, or a person's wish, is always heard, and not among them. A machine of one's own
    that has none does not write it."""

    kind: Literal["notice_sources"] = "notice_sources"
    answering: list[str]


class NoticeReceived(Event):
    """A notice that a machine will be taken away, or may be, and what the gang does about it."""

    kind: Literal["notice_seen"] = "notice_seen"
    source: str
    notice: Literal["end", "rebalance"]
    action: Literal["none", "save", "save_and_end", "end"]
    deadline: float | None = None
    """Unix time at which the machine goes."""
    text: str = ""
