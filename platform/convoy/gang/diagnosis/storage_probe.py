"""Whether each tier of the job takes and gives bytes: a thread for each asks again and again, and nobody waits for it.

A tier that is full or does not answer is no reason to stop: training goes on, and saves go elsewhere. But it is to be
seen, and while the root is away no generation can be formed.
"""

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from convoy.gang.diagnosis.hang_detector import Times
from convoy.gang.network.failure_detector import AwakeClock
from convoy.storage import Store, is_shared


@dataclass(frozen=True)
class Pace:
    """How often a tier is asked, and how long it may take."""

    every_seconds: float
    """From one question to the next."""
    least_seconds: float
    """No answer is expected sooner, however quick the tier was so far."""
    slack: float = 3.0
    """Times the 99th percentile of what its answers took: what takes longer counts as no answer."""
    most_seconds: float = 30.0
    """No answer for so long is one too many, however slow the tier was."""


FILES = Pace(every_seconds=1.0, least_seconds=2.0)
"""A folder, on this machine or on a file server: one that hangs is known after 2.5 s on average, one that is full
after 0.5 s."""

OBJECTS = Pace(every_seconds=10.0, least_seconds=10.0)
"""A bucket is never full, and each question costs two requests; boto tries them again by itself."""

AWAY_SECONDS = 5.0
"""A save that is under way on a tier loses what it has written if it goes elsewhere: not for a hiccup."""

END_SECONDS = 0.5
"""For the probes' objects to be removed from buckets, of all tiers together."""

_LONGEST_LOOK_SECONDS = 1.0
"""If more time passed between two looks, this process stood still, and perhaps what it had asked with it."""


@dataclass(frozen=True)
class Change:
    """A tier that was well is not any more, or is again."""

    tier: int
    """Index among the job's tiers; 0 is the root."""
    uri: str
    problem: str
    """In one line; empty: it is well again."""
    seconds: float
    """How long it had been asked for an answer in vain; or, of one that is well again, how long it was not."""

    @property
    def well(self) -> bool:
        return not self.problem


class Probe:
    """Asks every tier of a job, while a `with` block runs. `changes` belongs to one thread, and never waits."""

    def __init__(self, tiers: Sequence[Store], node: int, pace: Pace | None = None) -> None:
        """node: whose probe it is. pace: of all tiers; None: of each by its kind."""
        self._over = threading.Event()
        self._clock: AwakeClock | None = None
        name = f"probes/{node:05d}"
        self._asked = [_Asked(i, tier, name, pace or _pace_of(tier), self._over) for i, tier in enumerate(tiers)]

    def __enter__(self) -> "Probe":
        for asked in self._asked:
            asked.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ask no more. A thread whose question hangs is left to itself."""
        self._over.set()
        deadline = time.monotonic() + END_SECONDS
        for asked in self._asked:
            asked.end(deadline)

    def changes(self, now: float) -> list[Change]:
        """Since the last call. now: of a monotonic clock. To be called a few times per second."""
        self._clock = self._clock or AwakeClock(now, _LONGEST_LOOK_SECONDS)
        awake = self._clock.tick(now)
        return [change for asked in self._asked if (change := asked.look(awake)) is not None]

    @property
    def away(self) -> frozenset[int]:
        """The tiers on which no save should begin or go on, as of the last call of `changes`: that refuse, or have not
        answered for AWAY_SECONDS."""
        return frozenset(asked.tier for asked in self._asked if asked.away)


def _pace_of(tier: Store) -> Pace:
    return OBJECTS if is_shared(tier.uri) else FILES


@dataclass(frozen=True)
class _Answer:
    number: int
    """Of the question."""
    problem: str
    seconds: float


class _Asked:
    """One tier. Its thread writes `_question` and `_answer`, each at once; all else belongs to who looks."""

    def __init__(self, tier: int, store: Store, name: str, pace: Pace, over: threading.Event) -> None:
        self.tier = tier
        self.well = True
        self.away = False
        self._store = store
        self._name = name
        self._pace = pace
        self._over = over
        self._thread = threading.Thread(target=self._run, name=f"probe {store.uri}", daemon=True)
        self._question = 0
        self._answer = _Answer(0, "", 0.0)
        self._took = Times()
        self._known = 0
        """The newest answer that was looked at."""
        self._waits: tuple[int, float] = (0, 0.0)
        """The question under way, and since when, as far as was seen."""
        self._bad_since = 0.0

    def start(self) -> None:
        self._thread.start()

    def end(self, deadline: float) -> None:
        """Wait until it has removed what it left in the store, but no longer than that."""
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def look(self, awake: float) -> Change | None:
        """awake: seconds of an AwakeClock."""
        answer, question = self._answer, self._question
        if answer.number > self._known:
            self._known = answer.number
            if not answer.problem:
                self._took.add(answer.seconds)
            self.away = bool(answer.problem)
            return self._find(answer.problem, answer.seconds, awake)
        if question == answer.number:
            return None
        if self._waits[0] != question:
            self._waits = (question, awake)
        waited = awake - self._waits[1]
        if waited <= self._limit():
            return None
        self.away = self.away or waited > AWAY_SECONDS
        return self._find(f"no answer for {waited:.1f} s", waited, awake)

    def _find(self, problem: str, seconds: float, awake: float) -> Change | None:
        if self.well == (not problem):
            return None
        self.well = not problem
        if problem:
            self._bad_since = awake - seconds
            return Change(self.tier, self._store.uri, problem, seconds)
        return Change(self.tier, self._store.uri, "", awake - self._bad_since)

    def _limit(self) -> float:
        pace = self._pace
        return min(max(pace.least_seconds, pace.slack * self._took.p99()), pace.most_seconds)

    def _run(self) -> None:
        while True:
            self._ask()
            if self._over.wait(self._pace.every_seconds):
                break
        if not self._answer.problem:
            with contextlib.suppress(Exception):  # else a few bytes stay in the bucket
                self._store.delete(self._name)

    def _ask(self) -> None:
        began = time.monotonic()
        self._question += 1
        try:
            self._store.probe(self._name)
            problem = ""
        except Exception as error:  # whatever it is: this thread may not end
            problem = _one_line(error)
        self._answer = _Answer(self._question, problem, time.monotonic() - began)


def _one_line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
