"""Requests of the trainer that its writer process has not answered yet."""

import collections
import threading
import time
from dataclasses import dataclass, field

from convoy.checkpoint.messages import Close, Hurry, PostCommitRequest, Request, SetLayout, WritePart

_REMEMBERED = 64
"""Attempts that were given up, or are waited for. What older ones have left is pruned by the ordinary rule."""


@dataclass(frozen=True)
class ReceivedRequest:
    """A request, and when it came, by the monotonic clock."""

    request: SetLayout | WritePart | Close
    at: float


@dataclass
class DueWork:
    """The work on one tier between saves. All of it must be done: the other ranks do their part of the same."""

    read_back: list[PostCommitRequest] = field(default_factory=list)
    """Commits that were saved to this tier, in order."""
    copy: list[PostCommitRequest] = field(default_factory=list)
    """Commits that are to come to this tier from another, in order."""
    prune: int | None = None
    """The generation whose gang prunes."""


class Inbox:
    """Requests in order; what is done between saves lies apart from them, by tier."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: collections.deque[ReceivedRequest] = collections.deque()
        self._due: dict[str, DueWork] = {}
        self._over: collections.deque[str] = collections.deque(maxlen=_REMEMBERED)
        self._hurried: collections.deque[str] = collections.deque(maxlen=_REMEMBERED)
        self._writes = 0
        self._closing = False

    def put(self, request: Request) -> None:
        with self._changed:
            if isinstance(request, PostCommitRequest):
                self._put_post_commit(request)
            elif isinstance(request, Hurry):
                self._hurried.append(request.attempt)
            else:
                self._writes += isinstance(request, WritePart)
                self._requests.append(ReceivedRequest(request, time.monotonic()))
            self._changed.notify_all()

    def next_request(self) -> ReceivedRequest:
        """The oldest request; waits for one. A write counts as under way until `end_write`."""
        with self._changed:
            self._changed.wait_for(lambda: self._requests)
            return self._requests.popleft()

    def end_write(self) -> None:
        """The write that `next_request` gave last has ended, one way or the other."""
        with self._changed:
            self._writes -= 1
            self._changed.notify_all()

    def wait_for_write(self, seconds: float) -> bool:
        """Whether a further write waits behind the one under way: at once, or after at most so long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._writes > 1, seconds)

    def wait_for_hurry(self, attempt: str, seconds: float) -> bool:
        """Whether somebody waits for the attempt: at once, or after so long."""
        with self._changed:
            return self._changed.wait_for(lambda: attempt in self._hurried, seconds)

    def wait_until_idle(self) -> None:
        """Return when no write is under way or waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._writes == 0)

    def take_due(self, tier: str) -> DueWork | None:
        """All that is to be done on a tier, when no write is under way; None: there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._writes == 0 and (tier in self._due or self._closing))
            return self._due.pop(tier, None)

    def note_abandoned(self, attempt: str, tier: str, generation: int) -> None:
        """The coordinator's attempt has failed, and no commit of it can ever appear: what it has left is in the way of
        the next one. The tier is pruned when no write is under way, though no commit follows."""
        with self._changed:
            self._over.append(attempt)
            self._due_on(tier).prune = generation
            self._changed.notify_all()

    def abandoned_attempts(self) -> frozenset[str]:
        """The newest attempts that were given up, by name."""
        with self._changed:
            return frozenset(self._over)

    def close(self) -> None:
        """There will be no more requests."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def wait_until_closing(self, seconds: float) -> bool:
        """Whether it was closed: at once, or after at most so long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closing, seconds)

    def _put_post_commit(self, request: PostCommitRequest) -> None:
        if request.verify_part is not None:
            self._due_on(request.tier).read_back.append(request)
        for tier in request.copy_to:
            self._due_on(tier).copy.append(request)
        for tier in [request.tier, *request.copy_to] if request.prune else []:
            self._due_on(tier).prune = request.generation

    def _due_on(self, tier: str) -> DueWork:
        return self._due.setdefault(tier, DueWork())
