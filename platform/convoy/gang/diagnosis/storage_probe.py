"""Whether each tier of the job takes and returns bytes: a thread per tier tries repeatedly, and nobody waits for it.

A tier that is full or does not answer is no reason to stop: training continues, and saves go elsewhere. But it must be
noticed, and while the root is away no generation can be formed.
"""

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from convoy.gang.diagnosis.hang_detector import RecentTimes
from convoy.gang.network.failure_detector import AwakeClock
from convoy.storage import Store, is_shared


@dataclass(frozen=True)
class ProbeSettings:
    """How often a tier is tried, and how long that may take."""

    every_seconds: float
    """From one attempt to the next."""
    least_seconds: float
    """No answer is expected sooner, however quick the tier was so far."""


SLACK = 3.0
"""An attempt fails after this many times the 99th percentile of the attempts before it."""

MAX_SECONDS = 30.0
"""It fails after this in any case, however slow the tier was."""

FILES = ProbeSettings(every_seconds=1.0, least_seconds=2.0)
"""A folder, on this machine or on a file server: one that hangs is noticed after 2.5 s on average, one that is full
after 0.5 s."""

OBJECTS = ProbeSettings(every_seconds=10.0, least_seconds=10.0)
"""A bucket is never full, and each attempt costs two requests; boto retries them by itself."""

AWAY_SECONDS = 5.0
"""A save under way on a tier loses what it has written if it goes elsewhere: not for a hiccup."""

END_SECONDS = 0.5
"""For the probes' objects to be removed from buckets, of all tiers together."""

_MAX_LOOK_SECONDS = 1.0
"""If more time passed between two looks, this process was paused, and perhaps the attempt with it."""


@dataclass(frozen=True)
class TierChange:
    """A tier has become unavailable, or is available again."""

    tier: int
    """Index among the job's tiers; 0 is the root."""
    uri: str
    problem: str
    """In one line; empty: it is available again."""
    seconds: float
    """For how long it has not answered; or, of one that is available again, for how long it was not."""


class StorageProbe:
    """Tries every tier of a job while a `with` block runs. `take_changes` is called by one thread, and never waits."""

    def __init__(self, tiers: Sequence[Store], node: int, settings: ProbeSettings | None = None) -> None:
        """node: whose probe it is. settings: for all tiers; None: for each by its kind."""
        self._over = threading.Event()
        self._clock: AwakeClock | None = None
        name = f"probes/{node:05d}"
        self._probes = [
            _TierProbe(i, tier, name, settings or (OBJECTS if is_shared(tier.uri) else FILES), self._over)
            for i, tier in enumerate(tiers)
        ]

    def __enter__(self) -> "StorageProbe":
        for probe in self._probes:
            probe.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for END_SECONDS until the objects are removed. A thread whose attempt hangs is abandoned."""
        self._over.set()
        deadline = time.monotonic() + END_SECONDS
        for probe in self._probes:
            probe.thread.join(max(0.0, deadline - time.monotonic()))

    def take_changes(self, now: float) -> list[TierChange]:
        """The changes since the last call. now: by a monotonic clock. Call it a few times per second."""
        self._clock = self._clock or AwakeClock(now, _MAX_LOOK_SECONDS)
        awake = self._clock.tick(now)
        return [change for probe in self._probes if (change := probe.detect_change(awake)) is not None]

    @property
    def unusable_tiers(self) -> frozenset[int]:
        """The tiers on which no save should begin or continue, as of the last `take_changes`: those that refuse, or
        have not answered for AWAY_SECONDS."""
        return frozenset(probe.tier for probe in self._probes if probe.is_away)


@dataclass(frozen=True)
class _Answer:
    number: int
    """Of the attempt."""
    problem: str
    seconds: float


class _TierProbe:
    """Its thread writes `_attempt` and `_answer`, each atomically; the rest belongs to the thread that looks."""

    def __init__(self, tier: int, store: Store, name: str, settings: ProbeSettings, over: threading.Event) -> None:
        self.tier = tier
        self.is_away = False
        self.thread = threading.Thread(target=self._probe_until_over, name=f"probe {store.uri}", daemon=True)
        self._store = store
        self._name = name
        self._settings = settings
        self._over = over
        self._attempt = 0
        self._answer = _Answer(0, "", 0.0)
        self._times = RecentTimes()
        self._is_available = True
        self._newest = 0
        """The newest answer that was looked at."""
        self._waiting: tuple[int, float] = (0, 0.0)
        """The attempt under way, and when it was first noticed."""
        self._bad_since = 0.0

    def detect_change(self, awake_seconds: float) -> TierChange | None:
        """awake_seconds: of an AwakeClock."""
        answer, attempt = self._answer, self._attempt
        if answer.number > self._newest:
            self._newest = answer.number
            if not answer.problem:
                self._times.add(answer.seconds)
            self.is_away = bool(answer.problem)
            return self._record_result(answer.problem, answer.seconds, awake_seconds)
        if attempt == answer.number:
            return None
        if self._waiting[0] != attempt:
            self._waiting = (attempt, awake_seconds)
        waited = awake_seconds - self._waiting[1]
        if waited <= self._limit_seconds():
            return None
        self.is_away = self.is_away or waited > AWAY_SECONDS
        return self._record_result(f"no answer for {waited:.1f} s", waited, awake_seconds)

    def _record_result(self, problem: str, seconds: float, awake_seconds: float) -> TierChange | None:
        if self._is_available == (not problem):
            return None
        self._is_available = not problem
        if problem:
            self._bad_since = awake_seconds - seconds
            return TierChange(self.tier, self._store.uri, problem, seconds)
        return TierChange(self.tier, self._store.uri, "", awake_seconds - self._bad_since)

    def _limit_seconds(self) -> float:
        return min(max(self._settings.least_seconds, SLACK * self._times.p99()), MAX_SECONDS)

    def _probe_until_over(self) -> None:
        while True:
            self._probe_once()
            if self._over.wait(self._settings.every_seconds):
                break
        if not self._answer.problem:
            with contextlib.suppress(Exception):  # else a few bytes stay in the bucket
                self._store.delete(self._name)

    def _probe_once(self) -> None:
        began = time.monotonic()
        self._attempt += 1
        try:
            self._store.probe_write(self._name)
            problem = ""
        except Exception as error:  # whatever it is: this thread must not end
            problem = _one_line(error)
        self._answer = _Answer(self._attempt, problem, time.monotonic() - began)


def _one_line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
